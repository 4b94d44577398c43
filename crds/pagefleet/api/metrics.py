"""The one table of metrics: the engine exports it, the autoscaler, dashboards, alerts and docs read it.

Each metric has a name with our prefix and, where vLLM has the same measurement, vLLM's name too, with vLLM's labels and
meaning, so that existing dashboards, KEDA and the gateway inference extension work unchanged.
Source of the aliases: vLLM 0.32, v1/metrics/loggers.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

MetricKind = Literal["gauge", "counter", "histogram", "info"]

LABELS = ("model_name", "engine")
"""On every metric, own and alias: served model name, and index of the engine core in its process."""

TTFT_BUCKETS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.2, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
"""vLLM's bounds and, so that none of the usual objectives lies between two, 0.2, 1.5, 2 and 3 s."""
# vLLM's begin at 10 ms, which puts every token of a small model into one bucket.
ITL_BUCKETS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
LATENCY_BUCKETS_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
RESIDENCY_BUCKETS_S = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0),
    *(10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0),
)


def token_buckets(max_model_len: int) -> tuple[float, ...]:
    """Return the 1-2-5 series up to `max_model_len` tokens, for histograms whose bounds depend on the model."""
    bounds: list[float] = []
    decade = 1
    while True:
        for step in (1, 2, 5):
            if step * decade > max_model_len:
                return tuple(bounds)
            bounds.append(float(step * decade))
        decade *= 10


@dataclass(frozen=True)
class Metric:
    """One metric under its own name and its vLLM alias."""

    key: str
    """Name in code; stable."""
    name: str
    """Own Prometheus name. A counter's is without `_total`, which the exporter adds; an info's is complete."""
    kind: MetricKind
    """Info is exported as a gauge whose value is 1, as vLLM does."""
    help: str
    """One sentence for people."""
    unit: str = ""
    """Unit of the value, such as seconds, tokens, ratio; empty for plain counts of things."""
    labels: tuple[str, ...] = LABELS
    """Label names, the common two first."""
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram without +Inf; empty for one in tokens, whose bounds `bucket_bounds` makes."""
    vllm_name: str | None = None
    """Alias, with `vllm:`; None where vLLM has no such metric."""

    def bucket_bounds(self, max_model_len: int) -> tuple[float, ...]:
        """Return a histogram's upper bounds without +Inf, for a model with this longest sequence in tokens."""
        return self.buckets or token_buckets(max_model_len)

    def series_names(self, alias: str | None = None) -> tuple[str, ...]:
        """Return the names under which Prometheus stores it, or its alias; the first is the one to read alone."""
        base = alias or self.name
        if self.kind == "histogram":
            return (f"{base}_bucket", f"{base}_sum", f"{base}_count")
        return (f"{base}_total",) if self.kind == "counter" else (base,)


def _metric(
    key: str,
    kind: MetricKind,
    unit: str,
    text: str,
    *,
    name: str | None = None,
    vllm: str | None = "",
    labels: tuple[str, ...] = (),
    buckets: tuple[float, ...] = (),
) -> Metric:
    """Make a row. Both names are the key behind their prefix unless given; `vllm=None` means that vLLM has none."""
    return Metric(
        key=key,
        name=f"pagefleet_{name or key}",
        kind=kind,
        help=text,
        unit=unit,
        labels=(*LABELS, *labels),
        buckets=buckets,
        vllm_name=None if vllm is None else f"vllm:{vllm or key}",
    )


_TOKENS = (
    _metric("prompt_tokens", "counter", "tokens", "Prompt tokens of admitted requests."),
    _metric("generation_tokens", "counter", "tokens", "Tokens generated."),
    _metric("request_prompt_tokens", "histogram", "tokens", "Prompt tokens of a request."),
    _metric("request_generation_tokens", "histogram", "tokens", "Tokens generated for a request."),
    _metric(
        "request_max_num_generation_tokens",
        "histogram",
        "tokens",
        "Tokens of the longest choice of a request.",
        name="request_longest_choice_tokens",
    ),
    _metric("iteration_tokens_total", "histogram", "tokens", "Tokens of one engine step.", name="iteration_tokens"),
    _metric(
        "generation_tokens_per_second",
        "gauge",
        "tokens/second",
        "Tokens generated for each second, over the last few seconds.",
        vllm=None,
    ),
)

_LATENCIES = (
    _metric(
        "time_to_first_token_seconds",
        "histogram",
        "seconds",
        "Time from a request's arrival to its first token.",
        buckets=TTFT_BUCKETS_S,
    ),
    _metric(
        "inter_token_latency_seconds",
        "histogram",
        "seconds",
        "Time between two tokens of one answer.",
        buckets=ITL_BUCKETS_S,
    ),
    _metric(
        "request_time_per_output_token_seconds",
        "histogram",
        "seconds",
        "Mean time between the tokens of one answer, of answers of two tokens or more.",
        buckets=ITL_BUCKETS_S,
    ),
    _metric(
        "e2e_request_latency_seconds",
        "histogram",
        "seconds",
        "Time from a request's arrival to its last token.",
        buckets=LATENCY_BUCKETS_S,
    ),
    _metric(
        "request_queue_time_seconds",
        "histogram",
        "seconds",
        "Time that a request waited to be admitted.",
        buckets=LATENCY_BUCKETS_S,
    ),
    _metric(
        "request_prefill_time_seconds",
        "histogram",
        "seconds",
        "Time from a request's admission to its first token.",
        buckets=LATENCY_BUCKETS_S,
    ),
    _metric(
        "request_decode_time_seconds",
        "histogram",
        "seconds",
        "Time from a request's first token to its last.",
        buckets=LATENCY_BUCKETS_S,
    ),
    _metric(
        "step_time_seconds",
        "histogram",
        "seconds",
        "Time of one engine step.",
        vllm=None,
        buckets=ITL_BUCKETS_S,
    ),
)

_REQUESTS = (
    _metric("request_success", "counter", "", "Finished requests by finish reason.", labels=("finished_reason",)),
    _metric(
        "request_errors", "counter", "", "Requests answered with an error, by HTTP code.", labels=("code",), vllm=None
    ),
    _metric("admission_rejections", "counter", "", "Requests refused before the queue, by reason.", labels=("reason",)),
    _metric("num_requests_running", "gauge", "", "Requests in the running batch.", name="requests_running"),
    _metric("num_requests_waiting", "gauge", "", "Requests not yet admitted.", name="requests_waiting"),
    _metric(
        "num_requests_waiting_by_reason",
        "gauge",
        "",
        "Sequences that wait for KV blocks, for a place (sequences), for the step's tokens or for a shared prefix.",
        name="requests_waiting_by_reason",
        labels=("reason",),
    ),
    _metric("queued_tokens", "gauge", "tokens", "Prompt tokens of requests not yet admitted.", vllm=None),
    _metric("queue_age_seconds", "gauge", "seconds", "Age of the oldest request not yet admitted.", vllm=None),
)

_MEMORY = (
    _metric(
        "kv_cache_usage_perc",
        "gauge",
        "ratio",
        "Share of KV-cache blocks held by live sequences, 0 to 1; cached blocks don't count.",
        name="kv_cache_usage_ratio",
    ),
    _metric(
        "kv_blocks",
        "gauge",
        "",
        "KV-cache blocks by state: total, active, cached or free.",
        labels=("state",),
        vllm=None,
    ),
    _metric("num_preemptions", "counter", "", "Sequences that lost their blocks to others.", name="preemptions"),
    _metric("prefix_cache_queries", "counter", "tokens", "Prompt tokens looked up in the prefix cache."),
    _metric("prefix_cache_hits", "counter", "tokens", "Prompt tokens found in the prefix cache."),
    _metric(
        "kv_block_lifetime_seconds",
        "histogram",
        "seconds",
        "Time from a block's entering the prefix cache to its removal.",
        buckets=RESIDENCY_BUCKETS_S,
    ),
    _metric(
        "kv_block_idle_before_evict_seconds",
        "histogram",
        "seconds",
        "Time from a cached block's last use to its removal.",
        buckets=RESIDENCY_BUCKETS_S,
    ),
    _metric(
        "kv_block_reuse_gap_seconds",
        "histogram",
        "seconds",
        "Time from a cached block's use to its next hit.",
        buckets=RESIDENCY_BUCKETS_S,
    ),
    _metric(
        "memory_utilization_ratio",
        "gauge",
        "ratio",
        "Memory in use over its limit, 0 to 1: the accelerator's, or on a CPU the process's.",
        vllm=None,
    ),
    _metric(
        "memory_bytes",
        "gauge",
        "bytes",
        "Memory that the engine's start measured, and the planner's prediction of it, by part.",
        labels=("part", "kind"),
        vllm=None,
    ),
    _metric(
        "memory_drift_ratio",
        "gauge",
        "ratio",
        "Share by which the memory measured is more than predicted, 0.05 for 5 % more.",
        vllm=None,
    ),
)

_PROCESS = (
    _metric(
        "startup_stage_seconds",
        "gauge",
        "seconds",
        "Time that a start-up stage took.",
        labels=("stage",),
        vllm=None,
    ),
    _metric("build_info", "info", "", "Versions of the engine.", labels=("version", "torch_version"), vllm=None),
    _metric(
        "cache_config_info",
        "info",
        "",
        "Settings of the KV cache.",
        labels=("block_size", "num_gpu_blocks", "cache_dtype", "gpu_memory_utilization", "enable_prefix_caching"),
    ),
    _metric(
        "config_info",
        "info",
        "",
        "Settings of the engine, and the hash that its pod carries as an annotation.",
        labels=(
            *("config_hash", "max_model_len", "max_num_seqs", "max_num_batched_tokens"),
            *("dtype", "quantization", "batching", "model_impl", "device", "attention_backend", "linear_backend"),
        ),
        vllm=None,
    ),
)

METRICS: tuple[Metric, ...] = (*_TOKENS, *_LATENCIES, *_REQUESTS, *_MEMORY, *_PROCESS)
METRIC: Mapping[str, Metric] = MappingProxyType({metric.key: metric for metric in METRICS})
"""The table by key."""
