"""What the autoscaler tells Prometheus, made from the one table of metrics in the contract."""

from collections.abc import Iterable, Mapping
from contextlib import suppress

from pagefleet.api.control_metrics import AUTOSCALER_METRICS
from pagefleet.api.metric_registry import MetricRegistry
from pagefleet.autoscaler.observe import SHORT_S, missed_share
from pagefleet.autoscaler.records import ServiceKey
from pagefleet.autoscaler.scrape import Outcome
from pagefleet.autoscaler.service_memory import Step

Series = tuple[str, ...]


class AutoscalerMetrics:
    """The series of one process, in a registry of their own; those of a service go with it."""

    def __init__(self) -> None:
        made = MetricRegistry()
        self.registry = made.registry
        keys = {kind: [one.key for one in AUTOSCALER_METRICS if one.kind == kind] for kind in ("gauge", "counter")}
        self._gauges = {key: made.gauge(key) for key in keys["gauge"]}
        self._counters = {key: made.counter(key) for key in keys["counter"]}
        self._tick_s = made.histogram("autoscaler_tick_seconds")
        self._latest: dict[ServiceKey, Step] = {}
        self._of_service: dict[ServiceKey, dict[str, dict[Series, float]]] = {}
        self._counted: dict[ServiceKey, set[tuple[str, Series]]] = {}
        self._scrapes: Mapping[Outcome, int] = {}

    def count_write(self, kind: str) -> None:
        """Count a write to the API server: scale, status or event."""
        self._counters["autoscaler_writes"].labels(kind).inc()

    def count_change(self, key: ServiceKey, reason: str, *, is_reversal: bool) -> None:
        """Count a change of the number of replicas."""
        self._count(key, "autoscaler_decisions", (reason,))
        if is_reversal:
            self._count(key, "autoscaler_reversals", ())

    def observe_tick(self, seconds: float, modes: Mapping[str, int], scrapes: Mapping[Outcome, int]) -> None:
        """Take one round over all services: its time, services by mode, questions since the start by outcome."""
        self._tick_s.observe(seconds)
        services = self._gauges["autoscaler_services"]
        for mode in ("Off", "Recommend", "Active", "Conflict"):
            services.labels(mode).set(modes.get(mode, 0))
        for outcome in Outcome:
            new = scrapes.get(outcome, 0) - self._scrapes.get(outcome, 0)
            self._counters["autoscaler_scrapes"].labels(str(outcome)).inc(new)
        self._scrapes = dict(scrapes)

    def observe(self, step: Step) -> None:
        """Take one service's tick."""
        self._latest[step.record.key] = step

    def refresh(self, *, is_leading: bool) -> None:
        """Set the gauges: somebody looks, which is less often than there are ticks."""
        self._gauges["autoscaler_leading"].set(is_leading)
        for step in self._latest.values():
            self._set(step)

    def _set(self, step: Step) -> None:
        """Set the gauges of one service; what is unknown has no series."""
        key, known = step.record.key, self._of_service.setdefault(step.record.key, {})
        for name, values in _values(step).items():
            before = known.get(name, {})
            if values == before:
                continue
            gauge = self._gauges[name]
            for series, value in values.items():
                if before.get(series) != value:
                    gauge.labels(*key, *series).set(value)
            for series in before.keys() - values.keys():
                gauge.remove(*key, *series)
            known[name] = values

    def keep_only(self, keys: Iterable[ServiceKey]) -> None:
        """Drop the series of services that are gone."""
        present = set(keys)
        for key in self._latest.keys() - present:
            del self._latest[key]
        for key in self._of_service.keys() - present:
            for name, values in self._of_service.pop(key).items():
                for series in values:
                    self._gauges[name].remove(*key, *series)
        for key in self._counted.keys() - present:
            for name, series in self._counted.pop(key):
                with suppress(KeyError):
                    self._counters[name].remove(*key, *series)

    def _count(self, key: ServiceKey, name: str, series: Series) -> None:
        self._counters[name].labels(*key, *series).inc()
        self._counted.setdefault(key, set()).add((name, series))


def _values(step: Step) -> dict[str, dict[Series, float]]:
    """Return the value of each series of a service by metric and further labels."""
    snapshot, decision, state = step.snapshot, step.decision, step.state
    fresh = snapshot.fresh_readings(step.settings.stale_after_s)
    ages = [snapshot.time_s - reading.read_s for reading in snapshot.ready_readings]
    blocks = sum(reading.blocks_total for reading in fresh)
    phases = {
        "specified": snapshot.specified,
        "ready": len(snapshot.ready),
        "pending": len(snapshot.pending),
        "draining": len(snapshot.replicas) - len(snapshot.ready) - len(snapshot.pending),
    }
    spec = step.record.service.spec.autoscaling
    has_rate = decision is not None and len(state.totals) > 1
    return {
        "autoscaler_replicas": {(phase,): float(count) for phase, count in phases.items()},
        "autoscaler_max_replicas": _one(None if spec is None else spec.max_replicas),
        "autoscaler_desired_replicas": _one(None if decision is None else decision.desired),
        "autoscaler_unlimited_replicas": _one(None if decision is None else decision.unlimited),
        "autoscaler_limited": {(decision.limited_by,): 1.0} if decision and decision.limited_by else {},
        "autoscaler_condition": {
            (name,): 1.0
            for name in (*(decision.conditions if decision else ()), *(("Conflict",) if step.conflict else ()))
        },
        "autoscaler_signal_age_seconds": _one(max(ages, default=None)),
        "autoscaler_silent_replicas": _one(len(snapshot.ready) - len(fresh)),
        "autoscaler_kv_occupancy_ratio": _one(
            sum(reading.blocks_active for reading in fresh) / blocks if blocks else None
        ),
        "autoscaler_queued_requests": _one(sum(reading.queue_depth for reading in fresh) if fresh else None),
        "autoscaler_arrival_rate": _one(state.rates[-1].short if has_rate else None),
        "autoscaler_forecast_rate": _one(None if decision is None else decision.forecast_per_s),
        "autoscaler_service_rate": _one(None if decision is None else decision.service_rate_per_s),
        "autoscaler_lead_time_seconds": _one(None if decision is None else decision.lead_time_s),
        "autoscaler_missed_ratio": _one(missed_share(state.totals, SHORT_S, step.settings.least_samples)),
    }


def _one(value: float | None) -> dict[Series, float]:
    return {} if value is None else {(): float(value)}
