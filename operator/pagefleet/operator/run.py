"""One operator process from start to end: connect, wait for the lead, fill the store, work, leave.

following --lead--> list everything --> workers --> watches --signal--> workers stop, lead released, exit 0
                                                       |--lead lost, kopf ended, a task failed--> exit 1
"""

import asyncio
import logging
import random
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime

from pagefleet.api.client import KubernetesClient
from pagefleet.api.health_server import start_health_server
from pagefleet.api.installed_schema import SchemaMissing, read_installed_schema
from pagefleet.api.leader import LeaderElection, LeaseSettings, act_while_leading
from pagefleet.operator.controller import Controller
from pagefleet.operator.handlers import watch
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
        lease = LeaseSettings.lasting(
            settings.lease_duration_s,
            namespace=settings.render.operator_namespace,
            identity=settings.identity,
            name=settings.lease_name,
        )
        election = LeaderElection(client, lease, clock=time.monotonic, now=lambda: datetime.now(UTC))
        runner, port = await start_health_server(
            settings.http_port,
            metrics.registry,
            find_fault=lambda: _find_fault(client, controller),
            refresh=lambda: controller.refresh_metrics(is_leading=election.is_leading),
        )
        logger.info("operator %s, health and metrics on port %d", settings.render.operator_version, port)
        try:
            acting = _act(client, settings, controller, listen_to_signals)
            was_asked = await act_while_leading(acting, election, stopping, expected=(SchemaMissing,))
            return EXIT_STOPPED if was_asked else EXIT_FAILED
        finally:
            await runner.cleanup()


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


def _find_fault(client: KubernetesClient, controller: Controller) -> str | None:
    """Return why this process should be started again."""
    heard_s = client.last_answer_monotonic_s
    if heard_s is not None and time.monotonic() - heard_s > SILENCE_S:
        return f"no answer from the API server for {time.monotonic() - heard_s:.0f} s"
    if controller.oldest_s > STUCK_S:
        return f"a service waits for a worker for {controller.oldest_s:.0f} s"
    return None
