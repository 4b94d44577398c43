"""What a process exports, compared with its table of metrics."""

from collections.abc import Iterable

from prometheus_client.parser import text_string_to_metric_families

from pagefleet.api.metrics import Metric

_BUCKET_LABEL = "le"


def differences(exposition: str, table: Iterable[Metric]) -> list[str]:
    """Return in what an exposition and a table differ, one sentence each: names, kinds, labels, texts.

    A metric with labels may have no series yet, but must be announced (`# HELP`, `# TYPE`).
    """
    families = {family.name: family for family in text_string_to_metric_families(exposition)}
    expected = {
        name: metric for metric in table for name in (metric.name, metric.vllm_name) if name is not None
    }  # own and alias
    found = [f"{name} is in no table" for name in families.keys() - expected.keys() if _is_ours(name)]
    for name, metric in expected.items():
        family = families.get(name)
        if family is None:
            found.append(f"{name} is not exported")
            continue
        kind = "gauge" if metric.kind == "info" else metric.kind
        if family.type != kind:
            found.append(f"{name} is a {family.type}, not a {kind}")
        if family.documentation != metric.help:
            found.append(f"{name} is described as {family.documentation!r}, not as {metric.help!r}")
        for labels in {tuple(sorted({*sample.labels} - {_BUCKET_LABEL})) for sample in family.samples}:
            if labels != tuple(sorted(metric.labels)):
                found.append(f"{name} has the labels {labels}, not {metric.labels}")
    return sorted(found)


def _is_ours(name: str) -> bool:
    return name.startswith(("pagefleet_", "vllm:")) and not name.endswith("_created")  # times that the library adds
