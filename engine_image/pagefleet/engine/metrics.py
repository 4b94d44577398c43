"""Count what the engine does and show it to Prometheus, each value under our own name and under vLLM's.

What a client can see (tokens, times, ends of requests) is counted here, in the process that talks to the client, so a
stop string that cuts an answer cuts the counts as well. What only the core knows is read from its latest state when
someone scrapes. A value that is not known yet has no series: never 0.
"""

import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import metadata

import msgspec
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector

from pagefleet.api.capacity import LatencyHistogram
from pagefleet.api.metrics import METRIC, METRICS, Metric
from pagefleet.engine.messages import BlockResidency, CoreReady, CoreState, StepOutputs

RATE_WINDOW_S = 5.0
"""Span of the tokens-per-second gauge: long enough to be calm, shorter than a usual scrape interval."""

RECENT_STEPS = 32
"""Steps in the mean step time that `/capacity` reports."""

ENGINE_INDEX = "0"
"""vLLM's `engine` label: one core per process here."""

CAPACITY_LATENCIES = ("time_to_first_token_seconds", "request_time_per_output_token_seconds")
"""Histograms that `/capacity` shows. The client library takes 0.3 ms to give one out, so these are counted here too."""

Values = Mapping[tuple[str, ...], float]
"""Values by the labels that follow the common two."""


@cache  # finding one parses the package's whole metadata, and every scrape asks
def package_version(name: str) -> str:
    """Return an installed package's version without importing it; `unknown` when it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "unknown"


class EngineMetrics(Collector):
    """Hold all of one engine's metrics; `exposition()` is what `/metrics` answers."""

    def __init__(self, *, model_name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.ready: CoreReady | None = None
        """Set once the core is up: histograms of tokens have no bounds before."""
        self.config_hash: str | None = None
        self.startup_stage_seconds: dict[str, float] = {}
        self.choices_total = 0
        """Choices of the requests that the core has taken."""
        self.finished_total = 0
        """Of these, the ones that have ended, whatever ended them."""
        self.finished_tokens_total = 0
        """Tokens that those had."""
        self._state: CoreState | None = None
        self._common = (model_name, ENGINE_INDEX)
        self._counters: dict[str, Counter[tuple[str, ...]]] = {
            "prompt_tokens": Counter({(): 0}),
            "generation_tokens": Counter({(): 0}),
            "request_success": Counter({("stop",): 0, ("length",): 0, ("abort",): 0}),
            "request_errors": Counter(),
            "admission_rejections": Counter(),
        }
        self._histograms: dict[str, Histogram] = {}
        self._latency_counts: dict[str, list[int]] = {}
        self._recent_tokens: deque[tuple[float, int]] = deque()
        self._recent_step_times: deque[float] = deque(maxlen=RECENT_STEPS)
        self._steps_seen = 0
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    # ---- recording ----

    def set_ready(self, ready: CoreReady) -> None:
        """Take what the core said of itself when it came up."""
        self.ready = ready
        self.config_hash = ready.config_hash
        self._latency_counts = {key: [0] * (len(METRIC[key].buckets) + 1) for key in CAPACITY_LATENCIES}
        for metric in METRICS:
            if metric.kind == "histogram":
                self._histograms[metric.key] = Histogram(
                    metric.name,
                    metric.help,
                    metric.labels,
                    buckets=metric.bucket_bounds(ready.max_model_len),
                    registry=None,  # `collect` shows it, under both of its names
                )
                self._histograms[metric.key].labels(*self._common)  # with its zeros, before the first observation

    def count_started(self, *, prompt_tokens: int, choices: int) -> None:
        """Count a request that the core has taken."""
        self.increment("prompt_tokens", prompt_tokens)
        self.choices_total += choices

    def count_finished(self, tokens: int) -> None:
        """Count a choice that has ended with so many tokens."""
        self.finished_total += 1
        self.finished_tokens_total += tokens

    def observe_step(self, step: StepOutputs) -> None:
        """Take one report of the core; those between steps carry no new step."""
        self._state = step.state
        self._observe_residency(step.residency)
        if step.state.steps_total > self._steps_seen:
            self._steps_seen = step.state.steps_total
            self.observe("iteration_tokens_total", step.state.step_tokens)
            if step.state.step_time_s is not None:
                self.observe("step_time_seconds", step.state.step_time_s)
                self._recent_step_times.append(step.state.step_time_s)

    def _observe_residency(self, residency: BlockResidency) -> None:
        for key, times_s in (
            ("kv_block_lifetime_seconds", residency.lifetimes_s),
            ("kv_block_idle_before_evict_seconds", residency.idle_times_s),
            ("kv_block_reuse_gap_seconds", residency.reuse_gaps_s),
        ):
            for time_s in times_s:
                self.observe(key, time_s)

    def observe(self, key: str, value: float) -> None:
        """Add one observation to a histogram; before the core is up there is nothing to observe."""
        if (histogram := self._histograms.get(key)) is not None:
            histogram.labels(*self._common).observe(value)
        if (counts := self._latency_counts.get(key)) is not None:
            counts[bisect_left(METRIC[key].buckets, value)] += 1

    def increment(self, key: str, amount: int = 1, *, labels: tuple[str, ...] = ()) -> None:
        """Add to a counter; `labels` are the ones beside model name and engine."""
        self._counters[key][labels] += amount

    def count_generated(self, tokens: int, now_s: float) -> None:
        """Count tokens that reached the output."""
        self.increment("generation_tokens", tokens)
        self._recent_tokens.append((now_s, tokens))
        self._forget_old_tokens(now_s)

    # ---- reading ----

    @property
    def generation_tokens_total(self) -> int:
        """Return the tokens that reached the output."""
        return self._counters["generation_tokens"][()]

    @property
    def mean_step_time_s(self) -> float | None:
        """Return the mean duration of the latest steps; None before the first."""
        times = self._recent_step_times
        return sum(times) / len(times) if times else None

    def latencies(self, key: str) -> LatencyHistogram | None:
        """Return what a histogram that `/capacity` shows has counted; None before the core is up."""
        if (counts := self._latency_counts.get(key)) is None:
            return None
        return LatencyHistogram(bounds_s=METRIC[key].buckets, counts=tuple(counts))

    def exposition(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[MetricFamily]:
        """Yield every known metric under each of its names."""
        for metric in METRICS:
            for name in filter(None, (metric.name, metric.vllm_name)):
                if metric.kind == "histogram":
                    yield from self._histogram_family(metric, name)
                else:
                    yield from self._value_family(metric, name)

    def _histogram_family(self, metric: Metric, name: str) -> Iterator[MetricFamily]:
        if (histogram := self._histograms.get(metric.key)) is not None:
            family = MetricFamily(name, metric.help, "histogram")
            for sample in next(iter(histogram.collect())).samples:
                if not sample.name.endswith("_created"):
                    family.add_sample(name + sample.name.removeprefix(metric.name), sample.labels, sample.value)
            yield family

    def _value_family(self, metric: Metric, name: str) -> Iterator[MetricFamily]:
        values = self._values(metric)
        if values:
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = kind(name, metric.help, labels=metric.labels)
            for labels, value in values.items():
                family.add_metric((*self._common, *labels), value)
            yield family

    def _values(self, metric: Metric) -> Values:
        if metric.key in self._counters:
            return self._counters[metric.key]
        if metric.kind == "info":
            labels = self._info_labels()
            if all(name in labels for name in metric.labels[len(self._common) :]):
                return {tuple(labels[name] for name in metric.labels[len(self._common) :]): 1}
            return {}
        if metric.key == "startup_stage_seconds":
            return {(stage,): seconds for stage, seconds in self.startup_stage_seconds.items()}
        if metric.key == "generation_tokens_per_second":
            return {(): self._tokens_per_second()} if self.ready is not None else {}
        return self._core_values().get(metric.key, {})

    def _core_values(self) -> dict[str, Values]:
        state = self._state
        if state is None:
            return {}
        values: dict[str, Values] = {
            "num_requests_running": {(): state.running},
            "num_requests_waiting": {(): state.queue_depth},
            "num_requests_waiting_by_reason": {(reason,): count for reason, count in state.waiting_by_reason.items()},
            "queued_tokens": {(): state.tokens_queued},
            "queue_age_seconds": {(): state.queue_age_s or 0.0},
            "kv_blocks": {
                ("total",): state.blocks_total,
                ("active",): state.blocks_active,
                ("cached",): state.blocks_cached,
                ("free",): state.blocks_free,
            },
            "num_preemptions": {(): state.preemptions_total},
            "prefix_cache_queries": {(): state.prefix_query_tokens_total},
            "prefix_cache_hits": {(): state.prefix_hit_tokens_total},
        }
        if state.blocks_total:
            values["kv_cache_usage_perc"] = {(): state.blocks_active / state.blocks_total}
        values |= self._memory_values()
        if self.ready is not None and self.ready.memory_limit_bytes:
            values["memory_utilization_ratio"] = {(): state.memory_used_bytes / self.ready.memory_limit_bytes}
        return values

    def _memory_values(self) -> dict[str, Values]:
        memory = None if self.ready is None else self.ready.memory
        if memory is None:
            return {}
        sizes: dict[tuple[str, ...], float] = {}
        for kind, parts in (("predicted", memory.predicted), ("measured", memory.measured)):
            if parts is not None:
                for field, size in msgspec.structs.asdict(parts).items():
                    sizes[field.removesuffix("_bytes"), kind] = size
        drift = memory.drift_ratio
        return {"memory_bytes": sizes, "memory_drift_ratio": {} if drift is None else {(): drift}}

    def _info_labels(self) -> dict[str, str]:
        labels = {"version": package_version("pagefleet"), "torch_version": package_version("torch")}
        if (ready := self.ready) is not None:
            labels |= {
                "block_size": str(ready.block_size),
                "num_gpu_blocks": str(ready.blocks_total),
                "cache_dtype": ready.kv_cache_dtype,
                "gpu_memory_utilization": str(ready.gpu_memory_utilization),
                "enable_prefix_caching": str(ready.enable_prefix_caching),  # spelled as vLLM does
                "config_hash": ready.config_hash,
                "max_model_len": str(ready.max_model_len),
                "max_num_seqs": str(ready.max_num_seqs),
                "max_num_batched_tokens": str(ready.max_num_batched_tokens),
                "dtype": ready.dtype,
                "quantization": ready.quantization,
                "batching": ready.batching,
                "model_impl": ready.model_impl,
                "device": ready.device,
                "attention_backend": ready.attention_backend,
                "linear_backend": ready.linear_backend,
            }
        return labels

    def _tokens_per_second(self) -> float:
        self._forget_old_tokens(self.clock())
        return sum(tokens for _, tokens in self._recent_tokens) / RATE_WINDOW_S

    def _forget_old_tokens(self, now_s: float) -> None:
        while self._recent_tokens and self._recent_tokens[0][0] < now_s - RATE_WINDOW_S:
            self._recent_tokens.popleft()
