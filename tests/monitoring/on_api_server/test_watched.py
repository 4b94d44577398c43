"""What a real Prometheus makes of boards and alerts while it scrapes operator, autoscaler and an engine under load."""

import time
from pathlib import Path

import pytest

from pagefleet.api.control_metrics import AUTOSCALER_METRICS, OPERATOR_METRICS
from pagefleet.api.metrics import METRICS
from pagefleet.cli.dashboards.answers import fill_in
from pagefleet.cli.dashboards.boards import BOARDS
from pagefleet.cli.main import run
from tests.monitoring.on_api_server.watched_fleet import WatchedFleet
from tests.monitoring.prometheus_server import PrometheusServer
from tests.monitoring.promql import alert_rules, panel_expressions, series_read
from tests.support.exported_metrics import differences

RATE_INTERVAL_S = 60
PATIENCE_S = 90
MAY_BE_ABSENT = {
    "pagefleet_autoscaler_condition": "no condition holds",
    "pagefleet_autoscaler_limited": "no limit holds the number back",
    "pagefleet_autoscaler_reversals_total": "the number of replicas has not changed its direction",
    "pagefleet_operator_plan_drift_ratio": "the plan of a GPU is not compared with an engine on a CPU",
}
"""Series without which an alert is silent, and rightly so."""

# What vLLM's own Grafana dashboard queries (examples/observability/prometheus_grafana, 0.32), without its quantiles.
VLLM_RATES = (
    *("vllm:e2e_request_latency_seconds_sum", "vllm:e2e_request_latency_seconds_count"),
    *("vllm:inter_token_latency_seconds_sum", "vllm:inter_token_latency_seconds_count"),
    *("vllm:time_to_first_token_seconds_sum", "vllm:time_to_first_token_seconds_count"),
    *("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total"),
    *("vllm:request_queue_time_seconds_sum", "vllm:request_prefill_time_seconds_sum"),
    *("vllm:request_decode_time_seconds_sum", "vllm:request_max_num_generation_tokens_sum"),
    *("vllm:request_prompt_tokens_bucket", "vllm:request_generation_tokens_bucket"),
)
VLLM_QUANTILES = ("e2e_request_latency_seconds", "inter_token_latency_seconds", "time_to_first_token_seconds")
VLLM_GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")


def test_no_panel_is_empty(watched: PrometheusServer) -> None:
    """Once the load has done all that panels show; a rate, such as that of evictions, needs two scrapes after it."""
    end_s = time.monotonic() + PATIENCE_S
    empty = [*panel_expressions()]
    while empty and time.monotonic() < end_s:
        empty = [(where, expression) for where, expression in empty if not is_drawn(watched, expression)]
        time.sleep(0.5 if empty else 0)
    assert empty == []


def is_drawn(watched: PrometheusServer, expression: str) -> bool:
    """Tell whether a panel's expression has a number at this moment."""
    found = watched.query(fill_in(expression, {}, rate_interval_s=RATE_INTERVAL_S))
    return any(series["value"][1] != "NaN" for series in found)


def test_the_operator_exports_its_table(fleet: WatchedFleet) -> None:
    assert differences(fleet.operator.get("/metrics"), OPERATOR_METRICS) == []


def test_the_autoscaler_exports_its_table(fleet: WatchedFleet) -> None:
    assert differences(fleet.autoscaler.get("/metrics"), AUTOSCALER_METRICS) == []


@pytest.mark.parametrize("alert", [rule["alert"] for rule in alert_rules()])
def test_what_an_alert_reads_is_stored(watched: PrometheusServer, alert: str) -> None:
    (expression,) = [rule["expr"] for rule in alert_rules() if rule["alert"] == alert]
    missing = [name for name in series_read(expression) - MAY_BE_ABSENT.keys() if not watched.query(name)]
    assert missing == []


def test_choices_of_a_board_narrow_it(watched: PrometheusServer) -> None:
    expressions = dict(panel_expressions())
    running = expressions["service: Running requests: {{pod}}"]
    assert watched.query(fill_in(running, {"service": "chat", "model": "tiny"}, rate_interval_s=10))
    assert not watched.query(fill_in(running, {"service": "other"}, rate_interval_s=10))


def test_prometheus_runs_every_alert_and_a_healthy_engine_raises_none(watched: PrometheusServer) -> None:
    rules = {rule["name"]: rule for rule in watched.rules()}
    assert rules.keys() == {rule["alert"] for rule in alert_rules()}
    assert {name: rule.get("lastError") for name, rule in rules.items() if rule["health"] == "err"} == {}
    assert {name for name, rule in rules.items() if rule["state"] == "firing"} == set()


@pytest.mark.parametrize("name", [name for m in METRICS if m.vllm_name for name in m.series_names(m.vllm_name)])
def test_every_alias_is_stored(watched: PrometheusServer, name: str) -> None:
    assert watched.query(name)


def test_the_public_dashboard_of_vllm_works(watched: PrometheusServer) -> None:
    filters = '{model_name="tiny"}'
    queries = [
        *(f"rate({name}{filters}[{RATE_INTERVAL_S}s])" for name in VLLM_RATES),
        *(
            f"histogram_quantile({share}, sum by(le) (rate(vllm:{name}_bucket{filters}[{RATE_INTERVAL_S}s])))"
            for name in VLLM_QUANTILES
            for share in (0.5, 0.9, 0.95, 0.99)
        ),
        *(f"{name}{filters}" for name in VLLM_GAUGES),
        f"sum by(finished_reason) (increase(vllm:request_success_total{filters}[{RATE_INTERVAL_S}s]))",
    ]
    empty = [query for query in queries if not [each for each in watched.query(query) if each["value"][1] != "NaN"]]
    assert empty == []


@pytest.mark.parametrize("board", BOARDS)
def test_a_board_is_drawn_whole(
    watched: PrometheusServer, board: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from matplotlib.image import imread

    picture = tmp_path / "board.png"
    where = ["--prometheus", watched.url, "--out", str(picture)]
    assert run(["dashboard", "draw", board, *where, "--range", "30s", "--rate-interval", "30s"]) == 0
    assert capsys.readouterr().out == f"picture: {picture}\n", "no panel lacks data"
    colours = imread(picture)[:, :, :3]
    assert colours.shape[1] > 1000
    assert (colours.max(axis=2) - colours.min(axis=2) > 0.3).mean() > 0.002, "lines and areas are drawn"
