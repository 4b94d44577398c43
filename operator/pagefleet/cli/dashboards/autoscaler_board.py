"""The board of the autoscaler: what it wants, why, what holds it back, and whether it can see."""

from pagefleet.api.control_metrics import CONTROL_METRIC
from pagefleet.cli.dashboards.board import Board, Panel, PanelKind, Query, Row, Threshold, Unit
from pagefleet.cli.dashboards.expressions import (
    BY_SERVICE,
    INTERVAL,
    by_service,
    control,
    or_none,
    process,
    quantile,
    rate,
    variables,
)

_NAME = "{{namespace}}/{{service}}"


def _gauge(key: str) -> str:
    return by_service(control(f"autoscaler_{key}"))


def _replicas(phase: str) -> str:
    return by_service(control("autoscaler_replicas", f'phase="{phase}"'))


_DECISION = Row(
    "Decision",
    (
        Panel(
            title="Replicas",
            description="What the load asks for, within the limits and without, beside what there is.",
            queries=(
                Query(_gauge("desired_replicas"), "{{service}} desired"),
                Query(_gauge("unlimited_replicas"), "{{service}} without limits"),
                Query(_gauge("max_replicas"), "{{service}} maxReplicas"),
                *(
                    Query(_replicas(phase), f"{{{{service}}}} {phase}")
                    for phase in ("specified", "ready", "pending", "draining")
                ),
            ),
            width=12,
        ),
        Panel(
            title="Demand and what is served",
            description="Requests a second: arriving, to be ready for, and what the ready replicas serve within the "
            "objectives. The forecast above the last one: replicas are added.",
            queries=(
                Query(_gauge("arrival_rate"), "{{service}} arriving"),
                Query(_gauge("forecast_rate"), "{{service}} forecast"),
                Query(f"{_replicas('ready')} * {_gauge('service_rate')}", "{{service}} served by ready replicas"),
            ),
            unit=Unit.REQUESTS_PER_SECOND,
            width=12,
        ),
        Panel(
            title="Changes by reason",
            description="Changes of the number of replicas, counted over the interval.",
            queries=(
                Query(
                    or_none(
                        f"sum by ({BY_SERVICE}, reason) (increase({control('autoscaler_decisions')}[{INTERVAL}]))",
                        "reason",
                    ),
                    "{{service}} {{reason}}",
                ),
            ),
            is_stacked=True,
        ),
        Panel(
            title="What holds the number back",
            description="The limit that is in force; `none` where the load alone decides.",
            queries=(
                Query(
                    or_none(f"max by ({BY_SERVICE}, limit) ({control('autoscaler_limited')}) > 0", "limit"),
                    "{{service}} {{limit}}",
                ),
            ),
            unit=Unit.YES_OR_NO,
            kind=PanelKind.STATES,
        ),
        Panel(
            title="Conditions",
            description="What people should know, such as StuckPending or SignalMissing; `none` while all is well.",
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

_SIGNALS = Row(
    "Signals",
    (
        Panel(
            title="Objectives missed",
            description="Share of first tokens or answers that were late, over half a minute.",
            queries=(Query(_gauge("missed_ratio"), _NAME),),
            unit=Unit.RATIO,
            thresholds=(Threshold(0.01, "orange"), Threshold(0.05, "red")),
        ),
        Panel(
            title="KV occupancy",
            description="Share of KV-cache blocks of all replicas that live sequences hold.",
            queries=(Query(_gauge("kv_occupancy_ratio"), _NAME),),
            unit=Unit.RATIO,
            thresholds=(Threshold(0.8, "orange"), Threshold(0.95, "red")),
            is_share=True,
        ),
        Panel(
            title="Queued requests",
            description="Not yet admitted, of all replicas.",
            queries=(Query(_gauge("queued_requests"), _NAME),),
        ),
        Panel(
            title="Age of the oldest report",
            description="Of a ready replica. Old reports stop scale-down; they are never taken for an idle replica.",
            queries=(Query(_gauge("signal_age_seconds"), _NAME),),
            unit=Unit.SECONDS,
            thresholds=(Threshold(10, "orange"), Threshold(30, "red")),
        ),
        Panel(
            title="Silent replicas",
            description="Ready replicas whose report is too old to be counted on.",
            queries=(Query(_gauge("silent_replicas"), _NAME),),
            thresholds=(Threshold(1, "orange"),),
        ),
        Panel(
            title="Rate of one replica",
            description="Requests a second that one replica serves within the objectives, as learned.",
            queries=(Query(_gauge("service_rate"), _NAME),),
            unit=Unit.REQUESTS_PER_SECOND,
        ),
        Panel(
            title="Lead time",
            description="From a replica's creation until it serves: how far ahead the forecast looks.",
            queries=(Query(_gauge("lead_time_seconds"), _NAME),),
            unit=Unit.SECONDS,
        ),
        Panel(
            title="Changes of direction",
            description="Up after down or down after up, in an hour. More than a few: see the runbook of flapping.",
            queries=(
                Query(
                    or_none(f"sum by ({BY_SERVICE}) (increase({control('autoscaler_reversals')}[1h]))", "service"),
                    "{{service}}",
                ),
            ),
            thresholds=(Threshold(4, "orange"),),
        ),
    ),
)

_PROCESS = Row(
    "Process",
    (
        Panel(
            title="Time of a round",
            description="One round over all services; must stay below the tick.",
            queries=tuple(
                Query(quantile(share, "autoscaler_tick_seconds"), f"p{100 * share:g}") for share in (0.5, 0.95, 0.99)
            ),
            unit=Unit.SECONDS,
        ),
        Panel(
            title="Questions to replicas",
            description="By outcome: answered, late, refused or garbage.",
            queries=(
                Query(or_none(f"sum by (outcome) ({rate(process('autoscaler_scrapes'))})", "outcome"), "{{outcome}}"),
            ),
            unit=Unit.PER_SECOND,
            is_stacked=True,
        ),
        Panel(
            title="Writes to the API server",
            description="By kind: scale, status or event. Few at rest.",
            queries=(Query(or_none(f"sum by (kind) ({rate(process('autoscaler_writes'))})", "kind"), "{{kind}}"),),
            unit=Unit.PER_SECOND,
            is_stacked=True,
        ),
        Panel(
            title="Services by mode",
            description="Off leaves the number to others, Recommend only reports, Active sets it.",
            queries=(Query(f"max by (mode) ({process('autoscaler_services')})", "{{mode}}"),),
            kind=PanelKind.NUMBER,
            width=12,
        ),
        Panel(
            title="Leaders",
            description="Exactly one process acts.",
            queries=(Query(f"sum ({process('autoscaler_leading')})", "leaders"),),
            kind=PanelKind.NUMBER,
            width=12,
        ),
    ),
)

AUTOSCALER_BOARD = Board(
    name="autoscaler",
    title="pagefleet / Autoscaler",
    description="What the autoscaler wants, why, what holds it back, and whether it can see.",
    variables=variables(of=CONTROL_METRIC["autoscaler_desired_replicas"].name, model=False),
    rows=(_DECISION, _SIGNALS, _PROCESS),
)
