"""Make the series of operator and autoscaler from the one table of metrics, where their names and texts stand."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from pagefleet.api.control_metrics import CONTROL_METRIC
from pagefleet.api.metrics import MetricKind


class MetricRegistry:
    """Series by their keys in the table, each of the kind that code takes it for."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

    def gauge(self, key: str) -> Gauge:
        """Make a gauge."""
        return Gauge(*_described(key, "gauge"), registry=self.registry)

    def counter(self, key: str) -> Counter:
        """Make a counter."""
        return Counter(*_described(key, "counter"), registry=self.registry)

    def histogram(self, key: str) -> Histogram:
        """Make a histogram."""
        return Histogram(*_described(key, "histogram"), buckets=CONTROL_METRIC[key].buckets, registry=self.registry)


def _described(key: str, kind: MetricKind) -> tuple[str, str, tuple[str, ...]]:
    """Return name, help and labels of a metric."""
    metric = CONTROL_METRIC[key]
    if metric.kind != kind:
        raise TypeError(f"{key} is a {metric.kind} in the table of metrics, not a {kind}")
    return metric.name, metric.help, metric.labels
