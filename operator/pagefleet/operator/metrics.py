"""What the operator tells Prometheus about itself."""

from contextlib import suppress

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from pagefleet.api.v1alpha1 import PlanStatus
from pagefleet.operator.plan.plan_status import plan_drift

RECONCILE_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class OperatorMetrics:
    """The series of one process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.leading = Gauge("pagefleet_operator_leading", "1 while this process acts", registry=self.registry)
        self.services = Gauge("pagefleet_operator_services", "InferenceServices known", registry=self.registry)
        self.queue_depth = Gauge(
            "pagefleet_operator_queue_depth", "Services that wait for a worker or a time", registry=self.registry
        )
        self.queue_age_s = Gauge(
            "pagefleet_operator_queue_age_seconds", "Wait of the most neglected service", registry=self.registry
        )
        self.reconcile_s = Histogram(
            "pagefleet_operator_reconcile_seconds",
            "Time of one reconcile",
            buckets=RECONCILE_BUCKETS_S,
            registry=self.registry,
        )
        self.failures = Counter(
            "pagefleet_operator_reconcile_failures", "Reconciles that will be tried again", registry=self.registry
        )
        self.writes = Counter(
            "pagefleet_operator_writes", "Writes to the API server by kind", ["kind"], registry=self.registry
        )
        self.schema_is_current = Gauge(
            "pagefleet_operator_schema_current",
            "1 where the installed CustomResourceDefinition is the one of this version",
            registry=self.registry,
        )
        self.loop_lag_s = Gauge(
            "pagefleet_operator_event_loop_lag_seconds",
            "Longest recent stall",
            registry=self.registry,
        )

        self.plan_drift = Gauge(
            "pagefleet_operator_plan_drift_ratio",
            "Share by which an engine takes more memory than planned, 0.05 for 5 % more",
            ["namespace", "service"],
            registry=self.registry,
        )

    def observe_plan(self, namespace: str, service: str, plan: PlanStatus | None) -> None:
        """Take the error of a service's plan, where it is known."""
        drift = None if plan is None else plan_drift(plan)
        if drift is None:
            self.forget_service(namespace, service)
        else:
            self.plan_drift.labels(namespace, service).set(drift)

    def forget_service(self, namespace: str, service: str) -> None:
        """Drop the series of a service."""
        with suppress(KeyError):
            self.plan_drift.remove(namespace, service)

    def observe_reconcile(self, seconds: float, failed: bool) -> None:
        """Count one reconcile."""
        self.reconcile_s.observe(seconds)
        if failed:
            self.failures.inc()
