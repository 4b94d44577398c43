"""Read a server's `/metrics`, and say how much each number grew."""

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from pagefleet.api.metrics import LABELS

Samples = Mapping[tuple[str, tuple[tuple[str, str], ...]], float]
"""Values by name and by the labels beside model and engine, which are on every metric."""


def parse_metrics(text: str) -> Samples:
    """Read Prometheus' text format; raises ValueError when it is none, or a sample is there twice."""
    samples: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = sorted((name, value) for name, value in sample.labels.items() if name not in LABELS)
            key = (sample.name, tuple(labels))
            if key in samples:
                raise ValueError(f"{key} is exported twice")
            samples[key] = sample.value
    return samples


def metric_value(samples: Samples, name: str, **labels: str) -> float:
    """Return one sample; 0 when it is not there, as with a counter of what has not happened yet."""
    return samples.get((name, tuple(sorted(labels.items()))), 0.0)


class Growth:
    """Say how much a sample grew between two scrapes: `growth("name_total", label="value")`."""

    def __init__(self, before: Samples, after: Samples) -> None:
        self._before, self._after = before, after

    def __call__(self, name: str, **labels: str) -> float:
        """Return the difference."""
        return metric_value(self._after, name, **labels) - metric_value(self._before, name, **labels)
