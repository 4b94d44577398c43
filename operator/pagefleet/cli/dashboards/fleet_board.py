"""The board of all services: which of them needs a look, and whether the operator keeps up."""

from pagefleet.api.control_metrics import CONTROL_METRIC
from pagefleet.cli.dashboards.board import Board, Panel, PanelKind, Query, Row, Threshold, Unit
from pagefleet.cli.dashboards.expressions import (
    BY_SERVICE,
    SERVICE_FILTER,
    by_service,
    control,
    engine,
    kv_blocks,
    or_none,
    or_zero,
    process,
    quantile,
    rate,
    variables,
)

_WANTED = by_service(control("operator_service_replicas", 'state="wanted"'))
_READY = by_service(control("operator_service_replicas", 'state="ready"'))
_NAME = "{{namespace}}/{{service}}"


def _blocks(state: str) -> str:
    return kv_blocks(state, by=BY_SERVICE, where=SERVICE_FILTER)


def _engines(key: str) -> str:
    return engine(key, where=SERVICE_FILTER)


_NOW = Row(
    "Now",
    (
        Panel(
            title="Services",
            description="InferenceServices that the operator knows.",
            queries=(Query(f"max ({process('operator_services')})", "services"),),
            kind=PanelKind.NUMBER,
            width=4,
        ),
        Panel(
            title="Short of replicas",
            description="Services with fewer ready replicas than wanted. Normal for minutes while replicas start.",
            queries=(Query(or_zero(f"count ({_READY} < {_WANTED})"), "services"),),
            kind=PanelKind.NUMBER,
            thresholds=(Threshold(1, "orange"),),
            width=4,
        ),
        Panel(
            title="With a condition",
            description="Services of which the autoscaler reports a condition: see the table and its board.",
            queries=(Query(or_zero(f"count ({by_service(control('autoscaler_condition'))} > 0)"), "services"),),
            kind=PanelKind.NUMBER,
            thresholds=(Threshold(1, "orange"),),
            width=4,
        ),
        Panel(
            title="Worst share of objectives missed",
            description="Of the service that misses most, over half a minute.",
            queries=(Query(f"max ({control('autoscaler_missed_ratio')})", "missed"),),
            unit=Unit.RATIO,
            kind=PanelKind.NUMBER,
            thresholds=(Threshold(0.01, "orange"), Threshold(0.05, "red")),
            width=4,
        ),
        Panel(
            title="Requests finished",
            description="Of all services together.",
            queries=(Query(f"sum ({rate(_engines('request_success'))})", "requests"),),
            unit=Unit.REQUESTS_PER_SECOND,
            kind=PanelKind.NUMBER,
            width=4,
        ),
        Panel(
            title="Tokens generated",
            description="Of all services together.",
            queries=(Query(f"sum ({rate(_engines('generation_tokens'))})", "tokens"),),
            unit=Unit.TOKENS_PER_SECOND,
            kind=PanelKind.NUMBER,
            width=4,
        ),
    ),
)

_SERVICES = Row(
    "Services",
    (
        Panel(
            title="Every service",
            description="Replicas, load and latency side by side: sort by a column to find the one in trouble.",
            queries=(
                Query(_WANTED, "Wanted"),
                Query(_READY, "Ready"),
                Query(f"max by ({BY_SERVICE}) ({_engines('kv_cache_usage_perc')})", "Fullest cache", Unit.RATIO),
                Query(f"sum by ({BY_SERVICE}) ({_engines('num_requests_waiting')})", "Waiting"),
                Query(f"sum by ({BY_SERVICE}) ({rate(_engines('request_success'))})", "Requests/s"),
                Query(by_service(control("autoscaler_missed_ratio")), "Missed", Unit.RATIO),
                Query(by_service(control("autoscaler_signal_age_seconds")), "Signal age", Unit.SECONDS),
            ),
            kind=PanelKind.TABLE,
            width=24,
        ),
        Panel(
            title="Replicas ready of those wanted",
            description="1 is whole. Below 1 for longer than a start takes: a replica does not come up.",
            queries=(Query(f"{_READY} / ({_WANTED} > 0)", _NAME),),
            unit=Unit.RATIO,
            is_share=True,
        ),
        Panel(
            title="Replicas ready",
            description="Replicas that answer requests.",
            queries=(Query(_READY, _NAME),),
            is_stacked=True,
        ),
        Panel(
            title="Engines by device",
            description="Engines that report, by kind of device: each holds one accelerator, or processors.",
            queries=(Query(f"count by (device) ({_engines('config_info')})", "{{device}}"),),
            is_stacked=True,
        ),
        Panel(
            title="KV occupancy",
            description="Share of all blocks of a service that live sequences hold.",
            queries=(
                Query(
                    f"{_blocks('active')} / {_blocks('total')}",
                    _NAME,
                ),
            ),
            unit=Unit.RATIO,
            thresholds=(Threshold(0.8, "orange"), Threshold(0.95, "red")),
            is_share=True,
        ),
        Panel(
            title="Waiting requests",
            description="Not yet admitted. A queue that grows is more load than the replicas serve.",
            queries=(Query(f"sum by ({BY_SERVICE}) ({_engines('num_requests_waiting')})", _NAME),),
        ),
        Panel(
            title="Objectives missed",
            description="Share of first tokens or answers that were late, over half a minute.",
            queries=(Query(by_service(control("autoscaler_missed_ratio")), _NAME),),
            unit=Unit.RATIO,
            thresholds=(Threshold(0.01, "orange"), Threshold(0.05, "red")),
        ),
        Panel(
            title="Requests finished",
            description="By service.",
            queries=(Query(f"sum by ({BY_SERVICE}) ({rate(_engines('request_success'))})", _NAME),),
            unit=Unit.REQUESTS_PER_SECOND,
        ),
        Panel(
            title="Tokens generated",
            description="By service.",
            queries=(Query(f"sum by ({BY_SERVICE}) ({rate(_engines('generation_tokens'))})", _NAME),),
            unit=Unit.TOKENS_PER_SECOND,
        ),
        Panel(
            title="Conditions",
            description="What the autoscaler wants people to know, such as StuckPending; `none` while all is well.",
            queries=(
                Query(
                    or_none(f"max by ({BY_SERVICE}, condition) ({control('autoscaler_condition')}) > 0", "condition"),
                    "{{service}} {{condition}}",
                ),
            ),
            unit=Unit.YES_OR_NO,
            kind=PanelKind.STATES,
        ),
    ),
)

_OPERATOR = Row(
    "Operator",
    (
        Panel(
            title="Reconcile time",
            description="One look at one service, with its writes.",
            queries=tuple(
                Query(quantile(share, "operator_reconcile_seconds"), f"p{100 * share:g}") for share in (0.5, 0.95, 0.99)
            ),
            unit=Unit.SECONDS,
        ),
        Panel(
            title="Queue",
            description="Services that wait for a worker or a time.",
            queries=(Query(f"max ({process('operator_queue_depth')})", "services"),),
        ),
        Panel(
            title="Lag",
            description="Wait of the most neglected service, and the longest stall of the process.",
            queries=(
                Query(f"max ({process('operator_queue_age_seconds')})", "queue age"),
                Query(f"max ({process('operator_event_loop_lag_seconds')})", "stall"),
            ),
            unit=Unit.SECONDS,
            thresholds=(Threshold(30, "orange"), Threshold(60, "red")),
        ),
        Panel(
            title="Writes and failures",
            description="Writes to the API server by kind; none at rest. Failures are tried again.",
            queries=(
                Query(or_none(f"sum by (kind) ({rate(process('operator_writes'))})", "kind"), "{{kind}}"),
                Query(f"sum ({rate(process('operator_reconcile_failures'))})", "failed reconciles"),
            ),
            unit=Unit.PER_SECOND,
        ),
        Panel(
            title="Replicas that left",
            description="empty: its requests were finished. deadline: some were cut off. called_off: it stayed.",
            queries=(
                Query(or_none(f"sum by (outcome) ({rate(process('operator_drains'))})", "outcome"), "{{outcome}}"),
            ),
            unit=Unit.PER_SECOND,
        ),
        Panel(
            title="Memory beyond the plan",
            description="By which share engines take more memory than planned; beyond 5 % the plan needs a look.",
            queries=(Query(or_none(by_service(control("operator_plan_drift_ratio")), "service"), "{{service}}"),),
            unit=Unit.RATIO,
            thresholds=(Threshold(0.05, "orange"), Threshold(0.1, "red")),
            may_be_negative=True,
        ),
        Panel(
            title="Leader, and its CRD",
            description="Exactly one process leads, and the installed CRD is the one of this version.",
            queries=(
                Query(f"sum ({process('operator_leading')})", "leaders"),
                Query(f"min ({process('operator_schema_current')})", "CRD is current"),
            ),
            kind=PanelKind.NUMBER,
            width=8,
        ),
    ),
)

FLEET_BOARD = Board(
    name="fleet",
    title="pagefleet / Fleet",
    description="All services: which of them needs a look, and whether the operator keeps up.",
    variables=variables(of=CONTROL_METRIC["operator_service_replicas"].name, model=False),
    rows=(_NOW, _SERVICES, _OPERATOR),
)
