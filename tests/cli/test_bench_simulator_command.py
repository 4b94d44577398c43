"""The simulated engine beside the real one: a short run of what `pagefleet bench simulator` does."""

import json
from pathlib import Path

import pytest

from pagefleet.autoscaler.simulate.alone import play_alone
from pagefleet.autoscaler.simulate.replica import EngineModel
from pagefleet.autoscaler.simulate.workload import Arrival
from pagefleet.capacity.step_time import StepTime
from pagefleet.cli.bench_simulator_command import COUNTS, Check, compare, run_check
from pagefleet.engine.bench.presets import Preset, write_random_llama
from pagefleet.engine.bench.timed_engine import TimedRequest, TimedRun
from pagefleet.engine.config import EngineConfig

STEP = StepTime(base_s=1.0, prefill_token_s=0.1, kv_token_s=0.0, sequence_s=0.5)


def test_simulator_and_engine_need_the_same_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Small for its computing, so large that Python's share of a step, which no term holds, is small beside it.
    shape = Preset(
        hidden_size=256,
        layers=4,
        query_heads=4,
        kv_heads=2,
        intermediate_size=768,
        vocabulary_size=4000,
        ties_head=True,
    )
    model = tmp_path / "model"
    model.mkdir()
    write_random_llama(shape, model)
    engine = EngineConfig(
        model=str(model),
        device="cpu",
        dtype="float32",
        threads=1,
        max_num_seqs=16,
        max_num_queued_reqs=200,
        kv_cache_memory_bytes=2**26,
    )
    check = Check(engine=engine, preset="S", requests=50, most_tokens=256, json_path=tmp_path / "report.json")
    report = run_check(check)
    if not report["is_within"]:  # the machine was disturbed in one of the two
        report = run_check(check)

    assert report["is_within"], capsys.readouterr().out
    assert json.loads((tmp_path / "report.json").read_text()) == report
    counts = report["counts"]
    assert isinstance(counts, dict)
    assert set(counts) == set(COUNTS)
    for name in ("computed_tokens", "kv_tokens_read", "sequence_steps"):
        assert counts[name]["simulator"] == counts[name]["engine"] > 0


@pytest.mark.parametrize(("factor", "is_within"), [(1.0, True), (1.1, True), (1.2, False), (0.8, False)])
def test_what_is_too_far_apart(factor: float, is_within: bool) -> None:
    model = EngineModel(step=STEP, kv_tokens=160)
    played = play_alone(model, [Arrival(0.0, 10, 3), Arrival(20.0, 10, 1)])
    assert (played.makespan_s, played.mean_ttft_s) == (22.0, 2.0)
    requests = [
        TimedRequest(arrival_s=arrival_s, first_token_s=arrival_s + 2.0 * factor, end_s=22.0) for arrival_s in (0, 20)
    ]
    ran = TimedRun(requests=requests, steps=4, computed_tokens=20, kv_tokens_read=21, sequence_steps=2)
    report = compare(ran, played, within=0.15)

    assert report["is_within"] is is_within
    assert report["counts"] == {
        name: {"engine": count, "simulator": count} for name, count in zip(COUNTS, (4, 20, 21, 2), strict=True)
    }


def test_a_request_that_never_fits_is_refused_and_not_waited_for() -> None:
    with pytest.raises(ValueError, match="a request of 200 tokens never fits: the engine holds 160"):
        play_alone(EngineModel(step=STEP, kv_tokens=160), [Arrival(0.0, 190, 10)])
