"""`pagefleet.operator.metrics`: the series of the process are those of the table, no more and no fewer."""

from pagefleet.api.control_metrics import OPERATOR_METRICS
from pagefleet.operator.metrics import REPLICA_STATES, OperatorMetrics


def test_the_registry_has_what_the_table_says() -> None:
    metrics = OperatorMetrics()
    found = {one.name: (one.type, one.documentation) for one in metrics.registry.collect()}
    assert found == {one.name: (one.kind, one.help) for one in OPERATOR_METRICS}


def test_a_forgotten_service_has_no_series() -> None:
    metrics = OperatorMetrics()

    def find(state: str) -> float | None:
        labels = {"namespace": "team", "service": "chat", "state": state}
        return metrics.registry.get_sample_value("pagefleet_operator_service_replicas", labels)

    metrics.observe_replicas("team", "chat", wanted=3, ready=2, draining=1)
    assert [find(state) for state in REPLICA_STATES] == [3, 2, 1]
    metrics.forget_service("team", "chat")
    assert [find(state) for state in REPLICA_STATES] == [None, None, None]
