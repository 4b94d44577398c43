"""Keep one replica running: start its process, ask how it is, start it again after a crash, drain it when asked."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
from pydantic import ValidationError

from pagefleet.api.capacity import CapacityReport
from pagefleet.cli.play import replica as lives
from pagefleet.cli.play.process import EngineProcess, free_ports
from pagefleet.cli.play.replica import Phase, ReplicaState

ENGINE_PROGRAM = "pagefleet.cli.main"
RATE_WINDOW_S = 3.0
KILL_GRACE_S = 5.0
"""Seconds after the drain timeout in which the engine aborts what still runs and ends by itself."""


@dataclass(frozen=True, slots=True)
class RunnerSettings:
    """Say how engines are run here."""

    engine_program: str = ENGINE_PROGRAM
    """Module, or file ending in .py, that takes the rendered arguments."""
    log_folder: Path = Path()
    poll_interval_s: float = 0.25
    drain_timeout_s: float = 30.0
    clock: Callable[[], float] = time.monotonic
    """Seconds, of the phases and of autoscaling."""
    decision_interval_s: float = 5.0


class ReplicaRunner:
    """Own one replica: its state, its process and the task that keeps it running."""

    def __init__(
        self,
        *,
        name: str,
        number: int,
        configuration: tuple[str, ...],
        render: Callable[[int, int], list[str]],
        settings: RunnerSettings,
        taken_ports: set[int],
        admin_client: httpx.AsyncClient,
        on_change: Callable[[], None],
    ) -> None:
        self.number = number
        self.configuration = configuration
        self.log_path = settings.log_folder / f"{name}-{number}.log"
        self.url = ""
        self.in_flight = 0
        self.state = ReplicaState()
        self.report: CapacityReport | None = None
        self.reported_s: float | None = None
        """When the latest report came."""
        self.created_s = settings.clock()
        """Since when it is on its way: its making, or the crash of what was ready."""
        self._render = render
        self._settings = settings
        self._taken_ports = taken_ports
        self._ports: list[int] = []
        self._client = admin_client
        self._on_change = on_change
        self._process: EngineProcess | None = None
        self._leave = asyncio.Event()
        self._retired_s = 0.0
        self._may_drain_s = settings.drain_timeout_s
        self._generated: deque[tuple[float, int]] = deque()
        self._task = asyncio.create_task(self._run(), name=f"{name}-{number}")

    @property
    def is_ready(self) -> bool:
        """Tell whether it takes new requests."""
        return self.state.phase is Phase.READY

    @property
    def tokens_per_s(self) -> float | None:
        """Return the generation rate over the last seconds; None before two reports."""
        if len(self._generated) < 2:
            return None
        (start, before), (end, after) = self._generated[0], self._generated[-1]
        return max(0, after - before) / (end - start) if end > start else None

    @property
    def requests_in_flight(self) -> int:
        """Return the requests that the router or the engine knows of, whichever knows more."""
        told = self.report.in_flight if self.report is not None else None
        return max(self.in_flight, told or 0)

    def retire(self) -> None:
        """Take no new requests; end once those in flight have finished, or at the drain timeout."""
        self._retired_s = time.monotonic()
        self._become(lives.retiring(self.state))

    def call_back(self) -> None:
        """Take requests again in place of retiring."""
        self._become(lives.called_back(self.state))

    def drain(self) -> None:
        """Take no new requests, let those in flight finish, then end. May be called again."""
        if self._leave.is_set():
            return
        self._leave.set()
        if self._task.done():
            self._become(lives.after_exit(lives.draining(self.state), 0, "", self._settings.clock()))
            return
        self._become(lives.draining(self.state))
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """End the process group now."""
        self._leave.set()
        if self._process is not None:
            self._process.kill()

    async def wait(self) -> None:
        """Wait until the replica is gone, or failed for good."""
        await asyncio.wait((self._task,))

    async def _run(self) -> None:
        while True:
            try:
                exit_code, reason = await self._run_once()
            except OSError as error:  # no process, no log file, no port
                exit_code, reason = lives.USER_MISTAKE_EXIT_CODE, str(error)
            self.report = None
            self._generated.clear()
            if self.state.ready_since is not None:
                self.created_s = self._settings.clock()
            self._become(lives.after_exit(self.state, exit_code, reason, self._settings.clock()))
            if self.state.phase is not Phase.RESTARTING:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._leave.wait(), (self.state.restart_at or 0.0) - self._settings.clock())
            if self._leave.is_set():
                self._become(lives.after_exit(lives.draining(self.state), 0, "", self._settings.clock()))
                return
            self._become(lives.after_restart(self.state))

    async def _run_once(self) -> tuple[int, str]:
        """Run one process to its end; return its exit code and the last thing that it said."""
        self._ports = free_ports(2, self._taken_ports)
        self._taken_ports.update(self._ports)
        port, admin_port = self._ports
        admin_url = f"http://127.0.0.1:{admin_port}"
        try:
            process = await EngineProcess.start(
                self._settings.engine_program, self._render(port, admin_port), self.log_path
            )
            self._process, self.url = process, f"http://127.0.0.1:{port}"
            if self._leave.is_set():
                process.terminate()
            ending = asyncio.create_task(process.wait())
            killer = asyncio.create_task(self._kill_when_late(process))
            try:
                while not (await asyncio.wait((ending,), timeout=self._settings.poll_interval_s))[0]:
                    await self._steer(admin_url)
                    await self._ask(f"{admin_url}/capacity")
                    if await self._is_hung(f"{admin_url}/livez"):
                        process.kill()
                        await ending
                        return lives.HUNG_EXIT_CODE, "the engine makes no steps although work is pending"
                return ending.result(), process.last_line()
            finally:
                killer.cancel()
        finally:
            self._process = None
            self._taken_ports.difference_update(self._ports)

    async def _kill_when_late(self, process: EngineProcess) -> None:
        await self._leave.wait()
        await asyncio.sleep(self._may_drain_s + KILL_GRACE_S)
        process.kill()

    async def _steer(self, admin_url: str) -> None:
        """Have the engine drain while the replica retires, and take requests again once it was called back."""
        if self.state.is_called_back:
            await self._post(f"{admin_url}/undrain")
        elif self.state.phase is Phase.RETIRING:
            drains = self.report is not None and self.report.draining
            if time.monotonic() - self._retired_s >= self._settings.drain_timeout_s:
                self._may_drain_s = 0.0  # it had its time
                self.drain()
            elif not drains:
                await self._post(f"{admin_url}/drain")
            elif not self.requests_in_flight:
                self.drain()

    async def _post(self, url: str) -> None:
        """Tell the engine something; one that does not hear it is told again at the next poll."""
        with contextlib.suppress(httpx.HTTPError):
            await self._client.post(url)

    async def _ask(self, url: str) -> None:
        """Take over one capacity report; an engine that does not answer yet, or any more, changes nothing."""
        try:
            response = await self._client.get(url)
            report = CapacityReport.model_validate_json(response.content)
        except (httpx.HTTPError, ValidationError):
            return
        now = self._settings.clock()
        self.report, self.reported_s = report, now
        if report.generation_tokens_total is not None:
            self._generated.append((now, report.generation_tokens_total))
            while now - self._generated[0][0] > RATE_WINDOW_S:
                self._generated.popleft()
        self._become(lives.after_report(self.state, report, now))

    async def _is_hung(self, url: str) -> bool:
        """Tell whether the engine says itself that it is not live, as a kubelet's liveness probe would ask."""
        try:
            response = await self._client.get(url)
        except httpx.HTTPError:
            return False
        return response.status_code == httpx.codes.SERVICE_UNAVAILABLE and not self._leave.is_set()

    def _become(self, state: ReplicaState) -> None:
        if state != self.state:
            self.state = state
            self._on_change()
