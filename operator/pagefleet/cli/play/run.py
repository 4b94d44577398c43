"""Put `play` together: files → fleet → router, a screen, one question, and an orderly end."""

import asyncio
import shutil
import signal
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pagefleet.api.v1alpha1 import ServicePhase
from pagefleet.cli.errors import EXIT_FAILURE, EXIT_INTERRUPTED, UserMistake
from pagefleet.cli.plan.auto_choice import describe_auto
from pagefleet.cli.play import manifests
from pagefleet.cli.play.ask import AskFailed, stream_answer
from pagefleet.cli.play.fleet import Fleet
from pagefleet.cli.play.manifests import LocalManifests
from pagefleet.cli.play.reports import curl_line
from pagefleet.cli.play.router import build_router, upstream_client
from pagefleet.cli.play.runner import ENGINE_PROGRAM, RunnerSettings
from pagefleet.cli.play.screen import Screen
from pagefleet.cli.play.server import RouterServer, base_url, listen
from pagefleet.cli.play.view import ServiceView

TABLE_INTERVAL_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayOptions:
    """Say what to play and how."""

    files: Sequence[Path]
    host: str = "127.0.0.1"
    port: int = 8080
    question: str | None = None
    model: str | None = None
    """Served name of the model to ask; None is the first in the files."""
    stays: bool = False
    """Whether to go on serving after the answer."""
    drain_timeout_s: float = 30.0
    api_key: str | None = None
    """Sent with the question; engines read the same variable."""
    has_hub_token: bool = False
    engine_program: str = ENGINE_PROGRAM

    def load(self) -> LocalManifests:
        """Read the files."""
        flags = ("--drain-timeout", f"{self.drain_timeout_s:g}")
        return manifests.load(self.files, has_hub_token=self.has_hub_token, extra_flags=flags)


def play(options: PlayOptions) -> int:
    """Run until a signal or the answer, and return the exit code; raises UserMistake before anything starts."""
    loaded = options.load()
    if loaded.errors:
        raise UserMistake(loaded.errors)
    names = [service.wanted.served_name for service in loaded.services]
    if options.model is not None and options.model not in names:
        raise UserMistake(f"--model {options.model} is not in the files: write --model {' or --model '.join(names)}.")
    with listen(options.host, options.port) as listener:
        return asyncio.run(_play(options, loaded, listener))


async def _play(options: PlayOptions, loaded: LocalManifests, listener: socket.socket) -> int:
    log_folder = Path(tempfile.mkdtemp(prefix="pagefleet-play-"))
    session = _Session(options, listener, log_folder)
    exit_code = EXIT_FAILURE
    try:
        exit_code = await session.run(loaded)
        return exit_code
    finally:
        if exit_code in (0, EXIT_INTERRUPTED) and not session.went_wrong:
            shutil.rmtree(log_folder, ignore_errors=True)


class _Session:
    """One run of `play`. Everything happens in one event loop."""

    def __init__(self, options: PlayOptions, listener: socket.socket, log_folder: Path) -> None:
        self.went_wrong = False
        """Whether a log was ever named as the place to look."""
        self._options = options
        self._listener = listener
        self._url = base_url(listener)
        settings = RunnerSettings(
            engine_program=options.engine_program, log_folder=log_folder, drain_timeout_s=options.drain_timeout_s
        )
        self._fleet = Fleet(settings, self._on_change)
        self._screen = Screen(self._url, self._fleet.views)
        self._changed = asyncio.Event()
        self._stop = asyncio.Event()
        self._signals = 0
        self._has_told_curl = options.question is not None
        self._described: set[tuple[str, ...]] = set()
        self._describing: asyncio.Task[None] | None = None

    async def run(self, loaded: LocalManifests) -> int:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)
        client = upstream_client()
        server = RouterServer(build_router(self._fleet, client))
        serving = asyncio.create_task(server.serve(sockets=[self._listener]))
        side_tasks = [asyncio.create_task(self._follow_files()), asyncio.create_task(self._draw())]
        asking = asyncio.create_task(self._ask_and_stay())
        stopping = asyncio.create_task(self._stop.wait())
        scaling = asyncio.create_task(self._fleet.keep_deciding())
        try:
            self._screen.show_table()
            self._take_over(loaded)
            await asyncio.wait((asking, stopping, serving, scaling), return_when=asyncio.FIRST_COMPLETED)
            if scaling.done():
                scaling.result()
            if asking.done():
                return asking.result()
            return EXIT_INTERRUPTED if self._options.question is not None and not self._has_told_curl else 0
        finally:
            tasks = [*side_tasks, asking, stopping, scaling, *filter(None, (self._describing,))]
            for task in tasks:
                task.cancel()
            await self._end(server, serving)
            await asyncio.gather(*tasks, return_exceptions=True)
            await client.aclose()

    async def _end(self, server: RouterServer, serving: asyncio.Task[None]) -> None:
        self._screen.refresh_table()
        self._screen.hide_table()
        if any(view.ready for view in self._fleet.views()):
            self._screen.note("Draining: requests in flight finish first.")
        await self._fleet.close()
        server.should_exit = True
        await serving

    def _take_over(self, loaded: LocalManifests) -> None:
        for note in loaded.notes:
            self._screen.note(note)
        self._fleet.apply(loaded.services)
        if self._describing is not None:
            self._describing.cancel()
        self._describing = asyncio.create_task(self._describe_auto(loaded))

    async def _describe_auto(self, loaded: LocalManifests) -> None:
        """Tell what mode Auto would choose, once for each version of a service; files are read beside the loop."""
        can_run = {one.wanted.name for one in loaded.services if not one.wanted.refusal}
        for service in loaded.specs:
            if service.metadata.name not in can_run:
                continue
            lines = tuple(await asyncio.to_thread(describe_auto, service, memory_share=loaded.memory_share))
            if lines not in self._described:
                self._described.add(lines)
                for line in lines:
                    self._screen.note(line)

    def _on_signal(self) -> None:
        self._signals += 1
        self._stop.set()
        if self._signals > 1:
            self._fleet.kill()

    def _on_change(self) -> None:
        self._changed.set()
        self._screen.tell_changes()
        views = self._fleet.views()
        self.went_wrong = self.went_wrong or any(view.message for view in views)
        ready = next((view for view in views if view.ready), None)
        if ready is not None and not self._has_told_curl:
            self._tell_curl(ready.served_name)

    def _tell_curl(self, model: str) -> None:
        self._has_told_curl = True
        self._screen.write(curl_line(self._url, model, needs_key=self._options.api_key is not None), end="\n")

    async def _draw(self) -> None:
        while True:
            await asyncio.sleep(TABLE_INTERVAL_S)
            self._screen.refresh_table()

    async def _follow_files(self) -> None:
        async for _ in manifests.watch(self._options.files):
            loaded = await asyncio.to_thread(self._options.load)  # it may read the headers of models
            if loaded.errors:
                for error in loaded.errors:
                    self._screen.note(error)
                self._screen.note("The files have mistakes, so that everything goes on as before.")
            else:
                self._take_over(loaded)

    async def _ask_and_stay(self) -> int:
        question = self._options.question
        if question is not None:
            try:
                await self._ask(question)
            except AskFailed as failure:
                self._screen.note(str(failure))
                return EXIT_FAILURE
        if question is None or self._options.stays:
            await asyncio.Event().wait()  # until a signal
        return 0

    async def _ask(self, question: str) -> None:
        view = await self._wait_until_ready()
        self._screen.refresh_table()
        self._screen.hide_table()
        try:
            await stream_answer(self._url, view.served_name, question, self._options.api_key, self._screen.write)
        finally:
            self._screen.write("", end="\n")
        if self._options.stays:
            self._tell_curl(view.served_name)
            self._screen.show_table()

    async def _wait_until_ready(self) -> ServiceView:
        """Wait for the service to ask; raises AskFailed when waiting cannot help."""
        while True:
            self._changed.clear()
            views = [view for view in self._fleet.views() if self._options.model in (None, view.served_name)]
            if not views:
                raise AskFailed("The service to ask is gone from the files.")
            view = views[0]
            if view.can_be_asked:
                return view
            if view.is_hopeless:
                raise AskFailed(f"{view.name} cannot answer: {view.message}")
            if view.phase is ServicePhase.STOPPED:
                raise AskFailed(f"{view.name} cannot answer: spec.replicas is 0; write replicas: 1.")
            await self._changed.wait()
