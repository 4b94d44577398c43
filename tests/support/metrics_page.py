"""`docs/metrics.md`, made of the tables of metrics: `make docs` writes it, a test compares it."""

from collections.abc import Iterable
from pathlib import Path

from pagefleet.api.control_metrics import AUTOSCALER_METRICS, OPERATOR_METRICS, SERVICE_LABELS
from pagefleet.api.metrics import LABELS, METRICS, Metric

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"

_HEAD = """# Metrics

Every metric of engines, operator and autoscaler, under the name that Prometheus stores. Of a histogram that is
`_bucket`, `_sum` and `_count` behind the name. A value that is not known has no series: it is never 0.

| process | where |
|---|---|
| engine | `/metrics` on the public port 8000 and on the admin port 9000 of each pod |
| operator, autoscaler | `/metrics` on port 8080 of each pod; only the pod that leads has numbers of services |

With the Prometheus operator, each service gets a ServiceMonitor, and the chart's `metrics.serviceMonitor: true` makes
one for the control plane. Another Prometheus must give the engines' series the labels `namespace`, `service` (the
InferenceService) and `pod`, and must keep (`honor_labels: true`) the `namespace` and `service` that operator and
autoscaler write themselves. Dashboards and alerts rest on both.
"""


def render() -> str:
    """Return the page."""
    common = ", ".join(f"`{label}`" for label in LABELS)
    own = ", ".join(f"`{label}`" for label in SERVICE_LABELS)
    sections = [
        _HEAD,
        "## Engine\n",
        f"All have the labels {common}. What vLLM measures too has a second series under vLLM's name.\n",
        *_table(METRICS, hidden=LABELS, with_alias=True),
        "",
        "## Operator\n",
        *_table(OPERATOR_METRICS),
        "",
        "## Autoscaler\n",
        f"Those of a service have the labels {own}.\n",
        *_table(AUTOSCALER_METRICS),
    ]
    return "\n".join(sections) + "\n"


def _table(metrics: Iterable[Metric], *, hidden: tuple[str, ...] = (), with_alias: bool = False) -> list[str]:
    columns = ["metric", *(["vLLM's name"] if with_alias else []), "kind", "unit", "labels", "what it is"]
    rows = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for metric in metrics:
        cells = [
            f"`{_shown(metric, metric.name)}`",
            *([f"`{_shown(metric, metric.vllm_name)}`" if metric.vllm_name else ""] if with_alias else []),
            metric.kind,
            metric.unit,
            ", ".join(f"`{label}`" for label in metric.labels if label not in hidden),
            metric.help,
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def _shown(metric: Metric, name: str) -> str:
    return name if metric.kind == "histogram" else metric.series_names(name)[0]


def main() -> None:
    """Write the page."""
    PAGE.write_text(render())


if __name__ == "__main__":
    main()
