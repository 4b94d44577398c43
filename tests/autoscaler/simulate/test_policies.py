"""The field's policies do what their own rules say, and judgements are of the numbers."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pagefleet.autoscaler.simulate.acceptance import describe, judge, quick_candidates
from pagefleet.autoscaler.simulate.cases import Case, baseline_candidates, generated_case, prefill_step
from pagefleet.autoscaler.simulate.fleet import simulate
from pagefleet.autoscaler.simulate.frontier import Point, best_tuned, frontier, run_candidates
from pagefleet.autoscaler.simulate.outcome import Outcome
from pagefleet.autoscaler.simulate.policies.aibrix import Apa
from pagefleet.autoscaler.simulate.policies.dynamo import Load as DynamoLoad
from pagefleet.autoscaler.simulate.policies.hpa import Hpa, Keda, in_flight, occupancy
from pagefleet.autoscaler.simulate.policies.kpa import Kpa
from pagefleet.autoscaler.simulate.policies.wva import SaturationV1, SaturationV2
from pagefleet.autoscaler.simulate.report import as_json, as_markdown, plot_frontiers
from pagefleet.autoscaler.simulate.trace_files import UnreadableTrace, read_azure, read_mooncake, read_rates
from pagefleet.autoscaler.simulate.workload import first_seconds, repeated
from pagefleet.autoscaler.snapshot import Replica, Snapshot
from tests.autoscaler.snapshots import pending, reading, ready


def snapshot(now_s: float, *replicas: Replica, specified: int | None = None) -> Snapshot:
    return Snapshot(time_s=now_s, replicas=replicas, specified=len(replicas) if specified is None else specified)


def busy(now_s: float, *in_flights: int, **more: int) -> tuple[Replica, ...]:
    return tuple(
        ready(f"replica-{index}", reading(now_s, in_flight=count, **more)) for index, count in enumerate(in_flights)
    )


def test_hpa_takes_ratio_tolerance_limits_and_window() -> None:
    hpa = Hpa([(in_flight, 10.0)])
    assert hpa.desired(snapshot(0, *busy(0, 10, 11))) == 2, "within 10 %"
    assert hpa.desired(snapshot(15, *busy(15, 15, 15))) == 3
    assert Hpa([(in_flight, 10.0)]).desired(snapshot(0, *busy(0, 90, 90))) == 6, "4 pods or 100 %"
    assert hpa.desired(snapshot(30, *busy(30, 1, 1, 1))) == 3, "the most of 300 s"
    assert hpa.desired(snapshot(400, *busy(400, 1, 1, 1))) == 1


def test_hpa_counts_pods_that_load_as_idle() -> None:
    assert Hpa([(in_flight, 10.0)]).desired(snapshot(0, *busy(0, 15, 15), pending("new", 0.0))) == 3


def test_keda_adds_up() -> None:
    assert Keda([(in_flight, 10.0), (occupancy, 0.5)]).desired(snapshot(0, *busy(0, 15, 20))) == 4


def test_kpa_panics_and_holds() -> None:
    kpa = Kpa(10.0)
    assert kpa.desired(snapshot(0, *busy(0, 10, 10))) == 2
    assert kpa.desired(snapshot(2, *busy(2, 60, 60))) == 7
    assert kpa.desired(snapshot(4, *busy(4, 1, 1))) == 7


def test_wva_v1_adds_one_and_waits_for_it() -> None:
    policy = SaturationV1(up_window_s=0.0, down_window_s=300.0)
    full = [ready(f"replica-{n}", reading(0, blocks_active=20_000)) for n in range(2)]
    assert policy.desired(snapshot(0, *full)) == 3
    assert policy.desired(snapshot(60, *full, pending("new", 0.0), specified=3)) == 3


def test_wva_v2_sizes_by_tokens() -> None:
    policy = SaturationV2(up_window_s=0.0, down_window_s=0.0, block_size=16, max_num_seqs=256)
    full = [ready(f"replica-{n}", reading(0, blocks_active=24_000, queue_depth=50)) for n in range(2)]
    assert policy.desired(snapshot(0, *full)) > 2


def test_aibrix_and_dynamo_go_by_their_thresholds() -> None:
    full = [ready(f"replica-{n}", reading(0, blocks_active=20_000)) for n in range(2)]
    assert Apa(occupancy, 0.3).desired(snapshot(0, *full)) == 4, "twice at most"
    assert DynamoLoad("latency", block_size=16).desired(snapshot(0, *full)) == 3
    assert DynamoLoad("throughput", block_size=16).desired(snapshot(0, *full)) == 2


def point(family: str, setting: str, in_time: int, hours: float, reversals_s: tuple[float, ...] = ()) -> Point:
    outcome = Outcome(
        requests=1000,
        in_time=in_time,
        unfinished=0,
        replica_hours=hours,
        ttft_p50_s=0.1,
        ttft_p99_s=1.0,
        scale_events=3,
        reversals_s=reversals_s,
        preemptions=0,
        replicas=(),
    )
    return Point(family=family, setting=setting, outcome=outcome)


def test_a_frontier_holds_what_nothing_beats() -> None:
    points = [point("a", "1", 900, 5.0), point("a", "2", 990, 9.0), point("a", "3", 890, 6.0)]
    assert [each.setting for each in frontier(points)] == ["1", "2"]
    assert best_tuned(points).setting == "2"
    assert best_tuned(points[::2]).setting == "1"
    assert not points[0].dominates(points[0])


def test_verdicts_are_of_the_numbers() -> None:
    good = [
        point("pagefleet", "", 995, 7.0, (100.0, 900.0)),
        point("pagefleet", "speed +15%", 990, 7.5),
        point("clairvoyant", "load 0.85", 996, 6.5),
        point("HPA in-flight", "20", 991, 9.0),
        point("WVA V2", "0/300 s", 700, 7.5),
    ]
    verdicts = judge(dict.fromkeys(("conv x 6", "day 3", "day 9", "code x 4"), good), lead_time_s=140.0)
    assert [verdict for verdict in verdicts if not verdict.is_met] == []

    bad = [*good[1:], point("pagefleet", "", 950, 9.5, (100.0, 300.0))]
    missed = [verdict for verdict in judge({"conv x 6": bad}, lead_time_s=140.0) if not verdict.is_met]
    assert len(missed) == 4
    assert "HPA in-flight 20 99.1 % at 9.0 h" in " ".join(verdict.found for verdict in missed)


def small_case() -> Case:
    case = generated_case(seed=0)
    return replace(case, workload=first_seconds(prefill_step(seed=0), 700))


@pytest.mark.parametrize("candidate", baseline_candidates(small_case()), ids=lambda candidate: candidate.name)
def test_every_policy_of_the_field_runs(candidate) -> None:  # type: ignore[no-untyped-def]
    case = replace(small_case(), workload=first_seconds(prefill_step(seed=0), 120))
    outcome = simulate(case.workload, case.conditions, candidate.make())
    assert outcome.requests == len(case.workload.arrivals)
    assert outcome.unfinished == 0


def test_processes_give_the_same_points_in_order(tmp_path: Path) -> None:
    case, seen = small_case(), list[str]()
    alone = run_candidates(case, quick_candidates, jobs=1, on_point=lambda each: seen.append(describe(each)))
    together = run_candidates(case, quick_candidates, jobs=2, on_point=lambda _each: None)
    assert alone == together
    assert len(seen) == len(quick_candidates(case))

    points = {case.name: alone}
    written = json.loads(json.dumps(as_json(points, judge(points, lead_time_s=140.0))))
    assert written["cases"][case.name][0]["regret"]["replica_hours_ratio"] > 0
    assert as_markdown(points).splitlines()[0] == "| policy | prefill step |"
    pytest.importorskip("matplotlib")
    plot_frontiers(points, tmp_path / "frontiers.png")
    assert (tmp_path / "frontiers.png").stat().st_size > 5000


def test_traces_are_read_as_published(tmp_path: Path) -> None:
    azure = tmp_path / "azure.csv"
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    )
    workload = read_azure(azure)
    assert [(each.prompt_tokens, each.output_tokens) for each in workload.arrivals] == [(374, 44), (396, 109)]
    assert workload.arrivals[1].time_s == pytest.approx(4.314579)
    assert len(repeated(workload, 3, seed=0).arrivals) == 6

    mooncake = tmp_path / "mooncake.jsonl"
    mooncake.write_text('{"timestamp": 3000, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]}\n')
    assert read_mooncake(mooncake).arrivals[0].prefix_hashes == (1, 2)

    rates = tmp_path / "rates.csv"
    rates.write_text("0,2.5\n600,5\n")
    assert read_rates(rates) == [(600.0, 2.5), (600.0, 5.0)]


@pytest.mark.parametrize(
    ("read", "text", "sentence"),
    [
        (read_azure, "TIMESTAMP,ContextTokens,GeneratedTokens\nnever,1,2\n", "line 2"),
        (read_azure, "a,b\n1,2\n", "line 2"),
        (read_azure, "TIMESTAMP,ContextTokens,GeneratedTokens\n", "holds no requests"),
        (read_mooncake, '{"timestamp": 1}\n', "line 1"),
        (read_mooncake, "nothing\n", "line 1"),
        (read_rates, "0,1\n0,2\n", "do not rise"),
        (read_rates, "0,1\nx,y\n", "line 2"),
    ],
)
def test_what_is_no_trace_is_told_with_its_line(tmp_path: Path, read, text: str, sentence: str) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(UnreadableTrace, match=sentence):
        read(path)
