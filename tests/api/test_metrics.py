import re
from collections import Counter

import pytest

from pagefleet.api.metrics import LABELS, METRIC, METRICS, Metric, token_buckets
from tests.support import metrics_page

UNITS = ("_seconds", "_ratio", "_bytes")


def test_keys_and_names_are_unique() -> None:
    names = [metric.name for metric in METRICS] + [metric.vllm_name for metric in METRICS if metric.vllm_name]
    assert not [name for name, count in Counter(names).items() if count > 1]
    assert len(METRIC) == len(METRICS)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.key)
def test_follows_prometheus_conventions(metric: Metric) -> None:
    assert re.fullmatch("pagefleet_[a-z][a-z0-9_]*", metric.name)
    assert metric.vllm_name is None or re.fullmatch("vllm:[a-z][a-z0-9_]*", metric.vllm_name)
    assert metric.labels[: len(LABELS)] == LABELS
    assert metric.help.endswith(".")
    assert not metric.name.endswith("_total"), "the exporter adds it to counters, and nothing else has it"
    assert metric.name.endswith("_info") == (metric.kind == "info")
    for unit in UNITS:
        assert not metric.name.endswith(unit) or metric.unit == unit[1:]


@pytest.mark.parametrize("metric", [m for m in METRICS if m.kind == "histogram"], ids=lambda metric: metric.key)
def test_bounds_rise(metric: Metric) -> None:
    bounds = metric.bucket_bounds(8192)
    assert list(bounds) == sorted(set(bounds))
    assert bounds
    assert bool(metric.buckets) == (metric.unit == "seconds")


def test_only_histograms_have_buckets() -> None:
    assert not [metric.key for metric in METRICS if metric.buckets and metric.kind != "histogram"]


@pytest.mark.parametrize(
    ("longest", "bounds"), [(1, (1,)), (8, (1, 2, 5)), (20, (1, 2, 5, 10, 20)), (99, (1, 2, 5, 10, 20, 50)), (0, ())]
)
def test_token_buckets(longest: int, bounds: tuple[int, ...]) -> None:
    assert token_buckets(longest) == bounds


def test_aliases_that_other_projects_read() -> None:
    """KEDA examples, the gateway inference extension and published dashboards use these."""
    assert {metric.vllm_name: metric.kind for metric in METRICS}.items() >= {
        "vllm:num_requests_running": "gauge",
        "vllm:num_requests_waiting": "gauge",
        "vllm:kv_cache_usage_perc": "gauge",
        "vllm:cache_config_info": "info",
        "vllm:prompt_tokens": "counter",
        "vllm:generation_tokens": "counter",
        "vllm:num_preemptions": "counter",
        "vllm:prefix_cache_queries": "counter",
        "vllm:prefix_cache_hits": "counter",
        "vllm:request_success": "counter",
        "vllm:time_to_first_token_seconds": "histogram",
        "vllm:inter_token_latency_seconds": "histogram",
        "vllm:e2e_request_latency_seconds": "histogram",
        "vllm:iteration_tokens_total": "histogram",
    }.items()


def test_every_metric_is_documented() -> None:
    assert metrics_page.PAGE.read_text() == metrics_page.render(), "run make docs"


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("num_requests_running", ("pagefleet_requests_running",)),
        ("prompt_tokens", ("pagefleet_prompt_tokens_total",)),
        ("step_time_seconds", tuple(f"pagefleet_step_time_seconds_{part}" for part in ("bucket", "sum", "count"))),
    ],
)
def test_series_names(key: str, names: tuple[str, ...]) -> None:
    assert METRIC[key].series_names() == names
