"""One operator process from start to end: connect, wait for the lead, fill the store, work, leave.

following --lead--> list everything --> workers --> watches --signal--> workers stop, lead released, exit 0
                                                       |--lead lost, kopf ended, a task failed--> exit 1
"""

import asyncio
import logging
import random
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any

from pagefleet.api.client import KubernetesClient
from pagefleet.api.client_errors import ApiError
from pagefleet.operator.controller import Controller
from pagefleet.operator.handlers import watch
from pagefleet.operator.health import start_health_server
from pagefleet.operator.installed_schema import SchemaMissing, read_installed_schema
from pagefleet.operator.leader import LeaderElection, LeaseSettings
from pagefleet.operator.metrics import OperatorMetrics
from pagefleet.operator.settings import OperatorSettings

EXIT_STOPPED = 0
EXIT_FAILED = 1
FIRST_PASS_S = 5.0
"""Longest time that the first look at all services goes before the watches: kopf lists everything once more, and its
work would compete."""
SILENCE_S = 120.0
"""A leader that heard nothing of the API server for so long is started again."""
STUCK_S = 300.0
"""A service that waits for a worker so long means that workers hang."""

logger = logging.getLogger(__name__)


async def run_operator(settings: OperatorSettings) -> int:
    """Run until a signal or a failure; return the exit code. Raises `ApiError` and `SchemaMissing` at start."""
    stopping = asyncio.Event()

    def listen_to_signals() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)

    listen_to_signals()
    client = await KubernetesClient.connect(settings.kubeconfig, "pagefleet-operator")
    async with client:
        metrics = OperatorMetrics()
        controller = Controller(client, settings, metrics, dice=random.random)
        election = LeaderElection(client, _lease(settings), clock=time.monotonic, now=lambda: datetime.now(UTC))
        runner, port = await start_health_server(
            settings.http_port,
            metrics,
            find_fault=lambda: _find_fault(client, controller),
            refresh=lambda: controller.refresh_metrics(is_leading=election.is_leading),
        )
        logger.info("operator %s, health and metrics on port %d", settings.render.operator_version, port)
        try:
            acting = _act(client, settings, controller, listen_to_signals)
            return await _lead(acting, election, stopping)
        finally:
            await runner.cleanup()


async def _lead(work: Coroutine[Any, Any, None], election: LeaderElection, stopping: asyncio.Event) -> int:
    """Wait for the lead, then act until it ends."""
    is_stopped = asyncio.ensure_future(stopping.wait())
    acquired = asyncio.ensure_future(election.acquire())
    await asyncio.wait({is_stopped, acquired}, return_when=asyncio.FIRST_COMPLETED)
    if not acquired.done():
        await _cancel([acquired, is_stopped])
        work.close()
        return EXIT_STOPPED
    keeping = asyncio.ensure_future(election.keep())
    acting = asyncio.ensure_future(work)
    await asyncio.wait({is_stopped, keeping, acting}, return_when=asyncio.FIRST_COMPLETED)
    was_asked = is_stopped.done()
    await _cancel([acting])  # before anybody else may lead
    if not keeping.done():
        await _cancel([keeping])
        await election.release()
    await _cancel([is_stopped])
    return EXIT_STOPPED if was_asked else EXIT_FAILED


async def _act(
    client: KubernetesClient, settings: OperatorSettings, controller: Controller, listen_to_signals: Callable[[], None]
) -> None:
    """Do the leader's work; returns or raises when it can't go on."""
    controller.reconciler.facts = controller.facts_with(await read_installed_schema(client))
    await controller.prime()
    async with asyncio.TaskGroup() as group:
        group.create_task(controller.run())
        await controller.first_pass(FIRST_PASS_S)
        watching = asyncio.ensure_future(
            watch(
                controller.resources,
                controller.on_event,
                namespaces=settings.namespaces,
                kubeconfig=settings.kubeconfig,
                on_start=listen_to_signals,
            )
        )
        # Waited for, not awaited: when this ends, kopf takes seconds to end too, and the process does not wait for it.
        await asyncio.wait({watching})
        raise RuntimeError("the watches ended") from watching.exception()


async def _cancel(tasks: Sequence[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception):
            is_told = isinstance(outcome, ApiError | SchemaMissing)
            logger.error("stopped: %s", outcome, exc_info=None if is_told else outcome)


def _lease(settings: OperatorSettings) -> LeaseSettings:
    duration_s = settings.lease_duration_s
    return LeaseSettings(
        namespace=settings.render.operator_namespace,
        identity=settings.identity,
        name=settings.lease_name,
        duration_s=duration_s,
        renew_deadline_s=duration_s * 2 / 3,
        retry_s=min(2.0, duration_s / 5),
    )


def _find_fault(client: KubernetesClient, controller: Controller) -> str | None:
    """Return why this process should be started again."""
    heard_s = client.last_answer_monotonic_s
    if heard_s is not None and time.monotonic() - heard_s > SILENCE_S:
        return f"no answer from the API server for {time.monotonic() - heard_s:.0f} s"
    if controller.oldest_s > STUCK_S:
        return f"a service waits for a worker for {controller.oldest_s:.0f} s"
    return None
