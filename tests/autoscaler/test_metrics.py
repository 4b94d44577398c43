"""`pagefleet.autoscaler.metrics`: the series are those of the table, and those of a service go with it."""

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from pagefleet.api.control_metrics import AUTOSCALER_METRICS
from pagefleet.autoscaler.metrics import AutoscalerMetrics
from pagefleet.autoscaler.records import ServiceKey, read_service
from pagefleet.autoscaler.scrape import Outcome
from pagefleet.autoscaler.service_memory import ServiceMemory
from tests.autoscaler.cluster_objects import service_object
from tests.autoscaler.snapshots import TICK_S, Load, pending

SERVICE = read_service(service_object(replicas=1))
KEY = ServiceKey("team", "chat")


def samples(metrics: AutoscalerMetrics) -> dict[tuple[str, tuple[str, ...]], float]:
    """Return every sample by name and label values, those of the service's own labels left out."""
    found = {}
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        for sample in family.samples:
            labels = tuple(value for name, value in sample.labels.items() if name not in ("namespace", "service"))
            found[sample.name, labels] = sample.value
    return found


def observed() -> AutoscalerMetrics:
    """Return metrics of a service that was busy for a while."""
    metrics, memory, load = AutoscalerMetrics(), ServiceMemory(SERVICE), Load("a", rate_per_s=30.0)
    for tick in range(1, 13):
        load.add(TICK_S)
        now_s = TICK_S * tick
        step = memory.step(SERVICE, (*load.replicas(now_s), pending("b", now_s)), [], now_s=now_s, hold=None)
        metrics.observe(step)
    metrics.count_change(KEY, "Demand", is_reversal=True)
    metrics.count_write("scale")
    metrics.observe_tick(0.2, {"Active": 1}, {Outcome.ANSWERED: 3})
    metrics.observe_tick(0.2, {"Active": 1}, {Outcome.ANSWERED: 5})
    metrics.refresh(is_leading=True)
    return metrics


def test_the_registry_is_the_table() -> None:
    families = {family.name: family for family in AutoscalerMetrics().registry.collect()}
    assert set(families) == {metric.name for metric in AUTOSCALER_METRICS}
    for metric in AUTOSCALER_METRICS:
        assert (families[metric.name].type, families[metric.name].documentation) == (metric.kind, metric.help)


def test_what_a_busy_service_shows() -> None:
    found = samples(observed())
    assert found["pagefleet_autoscaler_arrival_rate", ()] > 20
    assert found["pagefleet_autoscaler_max_replicas", ()] == 8
    phases = {phase: found["pagefleet_autoscaler_replicas", (phase,)] for phase in ("specified", "ready", "pending")}
    assert phases == {"specified": 1, "ready": 1, "pending": 1}
    assert found["pagefleet_autoscaler_silent_replicas", ()] == 0
    assert found["pagefleet_autoscaler_decisions_total", ("Demand",)] == 1
    assert found["pagefleet_autoscaler_reversals_total", ()] == 1
    assert found["pagefleet_autoscaler_scrapes_total", ("answered",)] == 5
    assert found["pagefleet_autoscaler_services", ("Active",)] == found["pagefleet_autoscaler_leading", ()] == 1
    assert ("pagefleet_autoscaler_service_rate", ()) not in found, "what is unknown has no series"


def test_what_no_longer_holds_has_no_series() -> None:
    metrics, memory = observed(), ServiceMemory(SERVICE)
    metrics.observe(memory.step(SERVICE, (), [], now_s=1000.0, hold=None))
    metrics.refresh(is_leading=False)
    found = samples(metrics)
    assert ("pagefleet_autoscaler_signal_age_seconds", ()) not in found
    assert ("pagefleet_autoscaler_kv_occupancy_ratio", ()) not in found
    assert found["pagefleet_autoscaler_replicas", ("ready",)] == 0


def test_the_series_of_a_service_go_with_it() -> None:
    metrics = observed()
    metrics.keep_only([KEY])
    assert "team" in generate_latest(metrics.registry).decode()
    metrics.keep_only([])
    assert "team" not in generate_latest(metrics.registry).decode()
