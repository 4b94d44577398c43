"""The metrics of operator and autoscaler, beside the engine's in `api.metrics`: one row each, for code and docs."""

from collections.abc import Mapping
from types import MappingProxyType

from pagefleet.api.metrics import Metric, MetricKind

SERVICE_LABELS = ("namespace", "service")
RECONCILE_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


def _metric(
    key: str,
    kind: MetricKind,
    unit: str,
    text: str,
    *,
    labels: tuple[str, ...] = (),
    buckets: tuple[float, ...] = (),
) -> Metric:
    return Metric(
        key=key,
        name=f"pagefleet_{key}",
        kind=kind,
        help=text,
        unit=unit,
        labels=labels,
        buckets=buckets,
        vllm_name=None,
    )


OPERATOR_METRICS: tuple[Metric, ...] = (
    _metric("operator_leading", "gauge", "", "1 while this process acts."),
    _metric("operator_services", "gauge", "", "InferenceServices known."),
    _metric("operator_queue_depth", "gauge", "", "Services that wait for a worker or a time."),
    _metric("operator_queue_age_seconds", "gauge", "seconds", "Wait of the most neglected service."),
    _metric(
        "operator_reconcile_seconds", "histogram", "seconds", "Time of one reconcile.", buckets=RECONCILE_BUCKETS_S
    ),
    _metric("operator_reconcile_failures", "counter", "", "Reconciles that will be tried again."),
    _metric("operator_writes", "counter", "", "Writes to the API server by kind.", labels=("kind",)),
    _metric(
        "operator_schema_current",
        "gauge",
        "",
        "1 where the installed CustomResourceDefinition is the one of this version.",
    ),
    _metric("operator_event_loop_lag_seconds", "gauge", "seconds", "Longest recent stall."),
    _metric(
        "operator_plan_drift_ratio",
        "gauge",
        "ratio",
        "Share by which an engine takes more memory than planned, 0.05 for 5 % more.",
        labels=SERVICE_LABELS,
    ),
    _metric(
        "operator_service_replicas",
        "gauge",
        "",
        "Replicas of a service by state: wanted, ready or draining.",
        labels=(*SERVICE_LABELS, "state"),
    ),
    _metric(
        "operator_drains",
        "counter",
        "",
        "Replicas that left, by how: empty, deadline or called_off.",
        labels=("outcome",),
    ),
)

AUTOSCALER_METRICS: tuple[Metric, ...] = (
    _metric("autoscaler_leading", "gauge", "", "1 while this process acts."),
    _metric("autoscaler_services", "gauge", "", "Services by mode.", labels=("mode",)),
    _metric(
        "autoscaler_desired_replicas",
        "gauge",
        "",
        "Replicas that the load asks for within the limits.",
        labels=SERVICE_LABELS,
    ),
    _metric(
        "autoscaler_unlimited_replicas",
        "gauge",
        "",
        "Replicas that the load asks for without any limit.",
        labels=SERVICE_LABELS,
    ),
    _metric(
        "autoscaler_replicas",
        "gauge",
        "",
        "Replicas by phase: specified, ready, pending or draining.",
        labels=(*SERVICE_LABELS, "phase"),
    ),
    _metric("autoscaler_max_replicas", "gauge", "", "The user's `maxReplicas`.", labels=SERVICE_LABELS),
    _metric(
        "autoscaler_decisions",
        "counter",
        "",
        "Changes of the number of replicas by reason.",
        labels=(*SERVICE_LABELS, "reason"),
    ),
    _metric("autoscaler_reversals", "counter", "", "Changes of direction.", labels=SERVICE_LABELS),
    _metric(
        "autoscaler_limited",
        "gauge",
        "",
        "1 for the limit that holds the number back, such as maxReplicas.",
        labels=(*SERVICE_LABELS, "limit"),
    ),
    _metric(
        "autoscaler_condition",
        "gauge",
        "",
        "1 for each condition that holds, such as StuckPending or SignalMissing.",
        labels=(*SERVICE_LABELS, "condition"),
    ),
    _metric(
        "autoscaler_signal_age_seconds",
        "gauge",
        "seconds",
        "Age of the oldest report of a ready replica.",
        labels=SERVICE_LABELS,
    ),
    _metric(
        "autoscaler_silent_replicas",
        "gauge",
        "",
        "Ready replicas whose report is too old to be counted on.",
        labels=SERVICE_LABELS,
    ),
    _metric(
        "autoscaler_kv_occupancy_ratio",
        "gauge",
        "ratio",
        "Share of KV-cache blocks of all replicas that live sequences hold.",
        labels=SERVICE_LABELS,
    ),
    _metric("autoscaler_queued_requests", "gauge", "", "Requests not yet admitted.", labels=SERVICE_LABELS),
    _metric(
        "autoscaler_arrival_rate",
        "gauge",
        "requests/second",
        "Requests that arrived, over half a minute.",
        labels=SERVICE_LABELS,
    ),
    _metric(
        "autoscaler_forecast_rate",
        "gauge",
        "requests/second",
        "Requests to be ready for at the end of a lead time.",
        labels=SERVICE_LABELS,
    ),
    _metric(
        "autoscaler_service_rate",
        "gauge",
        "requests/second",
        "Requests that one replica serves within the objectives.",
        labels=SERVICE_LABELS,
    ),
    _metric(
        "autoscaler_lead_time_seconds",
        "gauge",
        "seconds",
        "Time from a replica's creation until it serves.",
        labels=SERVICE_LABELS,
    ),
    _metric(
        "autoscaler_missed_ratio",
        "gauge",
        "ratio",
        "Share of first tokens or answers that missed their objective, over half a minute.",
        labels=SERVICE_LABELS,
    ),
    _metric(
        "autoscaler_tick_seconds",
        "histogram",
        "seconds",
        "Time of one round over all services.",
        buckets=RECONCILE_BUCKETS_S,
    ),
    _metric(
        "autoscaler_scrapes",
        "counter",
        "",
        "Questions to replicas by outcome: answered, late, refused or garbage.",
        labels=("outcome",),
    ),
    _metric(
        "autoscaler_writes",
        "counter",
        "",
        "Writes to the API server by kind: scale, status or event.",
        labels=("kind",),
    ),
)

CONTROL_METRICS: tuple[Metric, ...] = (*OPERATOR_METRICS, *AUTOSCALER_METRICS)
CONTROL_METRIC: Mapping[str, Metric] = MappingProxyType({metric.key: metric for metric in CONTROL_METRICS})
"""The table by key."""
