"""One autoscaler process from start to end: connect, wait for the lead, list everything, tick, leave.

following --lead--> list everything --> watches and ticks --signal--> lead released, exit 0
                                              |--lead lost, a task failed--> exit 1
"""

import asyncio
import logging
import random
import signal
import time
from datetime import UTC, datetime

from pagefleet.api.client import KubernetesClient
from pagefleet.api.health_server import start_health_server
from pagefleet.api.installed_schema import SchemaMissing, read_installed_schema
from pagefleet.api.labels import SERVICE_LABEL
from pagefleet.api.leader import LeaderElection, LeaseSettings, act_while_leading
from pagefleet.api.resources import INFERENCE_SERVICES, PODS
from pagefleet.api.retry import RetrySettings
from pagefleet.autoscaler.actuate import Actuator
from pagefleet.autoscaler.control import Control
from pagefleet.autoscaler.decision_log import DecisionLog, LogFile
from pagefleet.autoscaler.metrics import AutoscalerMetrics
from pagefleet.autoscaler.process_settings import ProcessSettings
from pagefleet.autoscaler.scrape import Scraper
from pagefleet.autoscaler.store import Store, all_namespaces
from pagefleet.autoscaler.watch import Watch

EXIT_STOPPED = 0
EXIT_FAILED = 1
SILENCE_S = 120.0
"""A leader that heard nothing of the API server for so long is started again."""
STUCK_S = 60.0
"""A tick that takes so long hangs."""
IMPATIENT = RetrySettings(attempts=2)
"""What could not be written is decided anew at the next tick."""

logger = logging.getLogger(__name__)


class SteadyClock:
    """Seconds since 1970 that never jump: the machine's time at the start, and what has passed since."""

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()

    def __call__(self) -> float:
        """Return the time."""
        return self._offset_s + time.monotonic()


async def run_autoscaler(settings: ProcessSettings) -> int:
    """Run until a signal or a failure; return the exit code. Raises `ApiError` and `OSError` at start."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    file = LogFile(settings.decision_log)
    log = DecisionLog(file.write, settings.logged_ticks)
    client = await KubernetesClient.connect(settings.kubeconfig, "pagefleet-autoscaler", retry=IMPATIENT)
    async with client:
        metrics = AutoscalerMetrics()
        leader = Leader(client, settings, metrics, log)
        lease = LeaseSettings.lasting(
            settings.lease_duration_s,
            namespace=settings.namespace,
            identity=settings.identity,
            name=settings.lease_name,
        )
        election = LeaderElection(client, lease, clock=time.monotonic, now=lambda: datetime.now(UTC))
        runner, port = await start_health_server(
            settings.http_port,
            metrics.registry,
            find_fault=leader.find_fault,
            refresh=lambda: metrics.refresh(is_leading=election.is_leading),
        )
        logger.info("autoscaler, health and metrics on port %d", port)
        try:
            was_asked = await act_while_leading(leader.act(), election, stopping, expected=(SchemaMissing,))
        finally:
            await runner.cleanup()
            file.close()
    return EXIT_STOPPED if was_asked else EXIT_FAILED


class Leader:
    """What the leading process does."""

    def __init__(
        self, client: KubernetesClient, settings: ProcessSettings, metrics: AutoscalerMetrics, log: DecisionLog
    ) -> None:
        self._client, self._settings, self._metrics, self._log = client, settings, metrics, log
        self._control: Control | None = None
        self._acting_since_s: float | None = None

    async def act(self) -> None:
        """Follow the cluster and tick until cancelled."""
        settings, store = self._settings, Store()
        schema = await read_installed_schema(self._client)
        watches = self._watches(store)
        clock = SteadyClock()
        scraper = Scraper(clock=clock, timeout_s=settings.scrape_timeout_s)
        self._control = Control(
            store,
            scraper,
            Actuator(self._client, store, schema, self._metrics, settings.identity),
            self._metrics,
            self._log,
            clock=clock,
            tick_s=settings.tick_s,
            status_interval_s=settings.status_interval_s,
            find_hold=lambda: None if all(watch.is_current for watch in watches) else "apiServer",
        )
        try:
            async with asyncio.TaskGroup() as group:
                for watch in watches:
                    group.create_task(watch.run())
                for watch in watches:  # no decision before the whole world is known
                    await watch.is_filled.wait()
                logger.info("%d services listed", len(store.services()))
                self._acting_since_s = time.monotonic()
                group.create_task(self._control.run())
        finally:
            await scraper.close()

    def find_fault(self) -> str | None:
        """Return why this process should be started again."""
        heard_s = self._client.last_answer_monotonic_s
        if heard_s is not None and time.monotonic() - heard_s > SILENCE_S:
            return f"no answer from the API server for {time.monotonic() - heard_s:.0f} s"
        if self._control is None or self._acting_since_s is None:
            return None
        ticked_s = self._control.ticked_monotonic_s or self._acting_since_s
        if time.monotonic() - ticked_s > STUCK_S:
            return f"no decision for {time.monotonic() - ticked_s:.0f} s"
        return None

    def _watches(self, store: Store) -> list[Watch]:
        found = []
        for namespace in all_namespaces(self._settings.namespaces):
            found.append(
                Watch(
                    self._client,
                    INFERENCE_SERVICES,
                    namespace,
                    None,
                    put=store.put_service,
                    drop=store.drop_service,
                    keep_only=store.keep_services,
                    dice=random.random,
                )
            )
            found.append(
                Watch(
                    self._client,
                    PODS,
                    namespace,
                    SERVICE_LABEL,  # what is not ours never comes over the wire
                    put=store.put_pod,
                    drop=store.drop_pod,
                    keep_only=store.keep_pods,
                    dice=random.random,
                )
            )
        return found
