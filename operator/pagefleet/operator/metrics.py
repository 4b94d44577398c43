"""What the operator tells Prometheus about itself. Names, help and labels are in `api.control_metrics`."""

from contextlib import suppress

from pagefleet.api.metric_registry import MetricRegistry
from pagefleet.api.v1alpha1 import PlanStatus
from pagefleet.operator.plan.plan_status import plan_drift

REPLICA_STATES = ("wanted", "ready", "draining")


class OperatorMetrics:
    """The series of one process, in a registry of their own."""

    def __init__(self) -> None:
        made = MetricRegistry()
        self.registry = made.registry
        self.leading = made.gauge("operator_leading")
        self.services = made.gauge("operator_services")
        self.queue_depth = made.gauge("operator_queue_depth")
        self.queue_age_s = made.gauge("operator_queue_age_seconds")
        self.reconcile_s = made.histogram("operator_reconcile_seconds")
        self.failures = made.counter("operator_reconcile_failures")
        self.writes = made.counter("operator_writes")
        self.schema_is_current = made.gauge("operator_schema_current")
        self.loop_lag_s = made.gauge("operator_event_loop_lag_seconds")
        self.plan_drift = made.gauge("operator_plan_drift_ratio")
        self.service_replicas = made.gauge("operator_service_replicas")
        self.drains = made.counter("operator_drains")

    def observe_plan(self, namespace: str, service: str, plan: PlanStatus | None) -> None:
        """Take the error of a service's plan, where it is known."""
        drift = None if plan is None else plan_drift(plan)
        if drift is not None:
            self.plan_drift.labels(namespace, service).set(drift)
        else:
            with suppress(KeyError):
                self.plan_drift.remove(namespace, service)

    def observe_replicas(self, namespace: str, service: str, *, wanted: int, ready: int, draining: int) -> None:
        """Take how many replicas of a service are in which state."""
        for state, count in zip(REPLICA_STATES, (wanted, ready, draining), strict=True):
            self.service_replicas.labels(namespace, service, state).set(count)

    def forget_service(self, namespace: str, service: str) -> None:
        """Drop the series of a service."""
        with suppress(KeyError):
            self.plan_drift.remove(namespace, service)
        for state in REPLICA_STATES:
            with suppress(KeyError):
                self.service_replicas.remove(namespace, service, state)

    def observe_reconcile(self, seconds: float, failed: bool) -> None:
        """Count one reconcile."""
        self.reconcile_s.observe(seconds)
        if failed:
            self.failures.inc()
