"""All services of this machine: brings what runs to what is wanted, and tells the router who is ready."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import httpx

from pagefleet.api.v1alpha1 import ServicePhase
from pagefleet.cli.play.holding import NotHeld, WaitingRoom
from pagefleet.cli.play.leaving import PresentReplica
from pagefleet.cli.play.plan import WantedService, plan_changes, share_of_machine
from pagefleet.cli.play.replica import Phase
from pagefleet.cli.play.runner import ReplicaRunner, RunnerSettings
from pagefleet.cli.play.scaling import LocalReplica, ScalingTerms, ServiceScaling
from pagefleet.cli.play.view import ReplicaView, ScalingView, ServiceView, view_service

ADMIN_TIMEOUT_S = 5.0

Render = Callable[[int, int, float], list[str]]
"""From port, admin port and share of the machine to the engine's arguments."""


@dataclass(frozen=True, slots=True)
class LocalService:
    """Pair what is wanted with how to start one replica of it."""

    wanted: WantedService
    render: Render
    scaling: ScalingTerms | None = None
    """None where the number of replicas is fixed."""


@dataclass(slots=True)
class _Running:
    service: LocalService | None = None
    """None once it is gone from the files."""
    replicas: list[ReplicaRunner] = field(default_factory=list)
    started: int = 0
    scaling: ServiceScaling | None = None
    room: WaitingRoom = field(default_factory=WaitingRoom)

    @property
    def wanted(self) -> WantedService | None:
        wanted = self.service.wanted if self.service else None
        return wanted if wanted is None or self.scaling is None else replace(wanted, replicas=self.scaling.replicas)

    def take_over(self, service: LocalService | None) -> None:
        self.service = service
        self.room.look_again()
        terms = service.scaling if service else None
        if terms is None:
            self.scaling = None
        elif self.scaling is None:
            self.scaling = ServiceScaling(terms, terms.first_replicas())
        else:
            self.scaling.adopt(terms)


class Fleet:
    """Run services as local processes. `on_change` is called, from the event loop, after anything changed."""

    def __init__(self, settings: RunnerSettings, on_change: Callable[[], None] = lambda: None) -> None:
        self._settings = settings
        self._on_change = on_change
        self._services: dict[str, _Running] = {}
        self._memory_share = 1.0
        self._taken_ports: set[int] = set()
        self._client = httpx.AsyncClient(timeout=ADMIN_TIMEOUT_S, trust_env=False)
        self._is_planned = False
        self._closes = False
        self._decides_at_once = asyncio.Event()

    def apply(self, services: Sequence[LocalService]) -> None:
        """Take over a new list of services: start, replace, scale and drain what differs."""
        if self._closes:
            return
        wanted = {service.wanted.name: service for service in services}
        # Local replicas share one machine. Those that run keep their share: a process cannot give memory back.
        self._memory_share = share_of_machine(service.wanted for service in services)
        for name in (*self._services, *wanted):
            self._services.setdefault(name, _Running()).take_over(wanted.get(name))
        self._decide()
        self._reconcile()

    # ---- what the router asks ----------------------------------------------------------------------------------------

    def models(self) -> list[str]:
        """List the served names."""
        return [running.wanted.served_name for running in self._services.values() if running.wanted]

    def ready_replicas(self, model: str) -> list[ReplicaRunner]:
        """List the replicas of a model that take new requests."""
        running = self._serving(model)
        return [replica for replica in running.replicas if replica.is_ready] if running else []

    def situation(self, model: str) -> str:
        """Say why a model has no ready replica."""
        running = self._serving(model)
        if running is None or self._closes:
            return str(ServicePhase.DRAINING)
        view = self._view(running, model)
        return view.message or view.progress or str(view.phase)

    async def hold(self, model: str) -> None:
        """Wait until a replica of a model is ready, where a request wakes it; raises NotHeld with the reason if not."""
        running = self._serving(model)
        if running is not None and running.scaling is not None and running.scaling.terms.wakes:
            self._decides_at_once.set()
            await running.room.wait(lambda: bool(self.ready_replicas(model)) or self._is_hopeless(model))
        if not self.ready_replicas(model):
            raise NotHeld(self.situation(model))

    def _is_hopeless(self, model: str) -> bool:
        running = self._serving(model)
        return running is None or self._closes or self._view(running, model).is_hopeless

    def _serving(self, model: str) -> _Running | None:
        return next((one for one in self._services.values() if one.wanted and one.wanted.served_name == model), None)

    # ---- what people ask ---------------------------------------------------------------------------------------------

    def views(self) -> list[ServiceView]:
        """Show every service, in the order of the files, leaving ones last."""
        services = sorted(self._services.items(), key=lambda item: item[1].wanted is None)
        return [self._view(running, name) for name, running in services]

    def _view(self, running: _Running, name: str) -> ServiceView:
        wanted = None if self._closes else running.wanted
        return view_service(
            wanted.name if wanted else name,
            wanted,
            [
                ReplicaView(
                    number=replica.number,
                    state=replica.state,
                    is_current=wanted is not None and replica.configuration == wanted.configuration,
                    report=replica.report,
                    tokens_per_s=replica.tokens_per_s,
                    log_path=replica.log_path,
                )
                for replica in running.replicas
            ],
            _view_scaling(running) if wanted else None,
        )

    # ---- ending ------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Drain everything and wait for it."""
        self._closes = True
        self._let_look_again()
        replicas = [replica for running in self._services.values() for replica in running.replicas]
        for replica in replicas:
            replica.drain()
        await asyncio.gather(*(replica.wait() for replica in replicas))
        await self._client.aclose()

    def kill(self) -> None:
        """End every process now; `close` still has to be awaited."""
        for running in self._services.values():
            for replica in running.replicas:
                replica.kill()

    # ---- scaling -----------------------------------------------------------------------------------------------------

    async def keep_deciding(self) -> None:
        """Decide how many replicas there should be, every few seconds, and at once when a request wakes a service."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._decides_at_once.wait(), self._settings.decision_interval_s)
            self._decides_at_once.clear()
            if not self._closes:
                self._decide()
                self._reconcile()

    def _decide(self) -> None:
        for name, running in self._services.items():
            if running.service is None or running.scaling is None or running.service.wanted.refusal:
                continue
            running.scaling.decide(
                _observe(name, running), held_requests=running.room.waiting, time_s=self._settings.clock()
            )

    # ---- reconciling -------------------------------------------------------------------------------------------------

    def _changed(self) -> None:
        # Later, once per turn of the loop: a change made while reconciling must not re-enter it.
        if not self._is_planned:
            self._is_planned = True
            asyncio.get_running_loop().call_soon(self._reconcile)

    def _reconcile(self) -> None:
        self._is_planned = False
        if not self._closes:
            for name, running in list(self._services.items()):
                running.replicas = [one for one in running.replicas if one.state.phase is not Phase.STOPPED]
                self._reconcile_service(name, running)
                if running.wanted is None and not running.replicas:
                    del self._services[name]
        self._let_look_again()
        self._on_change()

    def _let_look_again(self) -> None:
        for running in self._services.values():
            running.room.look_again()

    def _reconcile_service(self, name: str, running: _Running) -> None:
        present = [
            PresentReplica(
                replica.number,
                replica.configuration,
                replica.state.phase,
                replica.requests_in_flight,
                (replica.report.blocks_cached or 0) if replica.report else 0,
            )
            for replica in running.replicas
        ]
        changes = plan_changes(running.wanted, present)
        for replica in running.replicas:
            if replica.number in changes.stop:
                replica.drain()
            elif replica.number in changes.retire:
                replica.retire()
            elif replica.number in changes.call_back:
                replica.call_back()
        if running.service is not None:
            for _ in range(changes.start):
                running.started += 1
                running.replicas.append(self._start(name, running.started, running.service))

    def _start(self, name: str, number: int, service: LocalService) -> ReplicaRunner:
        memory_share = self._memory_share
        return ReplicaRunner(
            name=name,
            number=number,
            configuration=service.wanted.configuration,
            render=lambda port, admin_port: service.render(port, admin_port, memory_share),
            settings=self._settings,
            taken_ports=self._taken_ports,
            admin_client=self._client,
            on_change=self._changed,
        )


def _observe(name: str, running: _Running) -> list[LocalReplica]:
    return [
        LocalReplica(
            name=f"{name}-{replica.number}",
            phase=replica.state.phase,
            created_s=replica.created_s,
            ready_s=replica.state.ready_since,
            report=replica.report,
            reported_s=replica.reported_s,
            in_flight=replica.in_flight,
        )
        for replica in running.replicas
    ]


def _view_scaling(running: _Running) -> ScalingView | None:
    scaling = running.scaling
    if scaling is None or scaling.decision is None:
        return None
    return ScalingView(
        decision=scaling.decision,
        is_active=scaling.terms.is_active,
        wakes=scaling.terms.wakes,
        held_requests=running.room.waiting,
        memory_note=scaling.terms.memory_note,
    )
