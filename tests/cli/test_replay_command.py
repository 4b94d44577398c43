"""`pagefleet replay` as people type it, on logs that the simulator wrote."""

import json
from pathlib import Path

import pytest

from pagefleet.autoscaler.decision_record import hash_settings, write_record
from pagefleet.autoscaler.simulate.cases import Case, our_candidate
from pagefleet.autoscaler.simulate.fleet import Conditions, simulate
from pagefleet.autoscaler.simulate.replica import EngineModel
from pagefleet.autoscaler.simulate.workload import from_rates, lognormal_lengths
from pagefleet.capacity.step_time import StepTime
from pagefleet.cli.main import run

MANIFEST = """
apiVersion: serving.pagefleet.io/v1alpha1
kind: InferenceService
metadata: {name: chat}
spec:
  model: {uri: "hf://org/name"}
  autoscaling: {maxReplicas: 2, slo: {ttft: 2s, itl: 100ms}}
"""
SURGE = """
maxReplicas: 8
schedule: [{from: "00:00", to: "00:02", timeZone: UTC, minReplicas: 3}]
"""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the log of ten minutes in which a load comes and goes."""
    engine = EngineModel(
        step=StepTime(base_s=0.03, prefill_token_s=4e-4, kv_token_s=1e-7, sequence_s=2.5e-3),
        kv_tokens=60_000,
        max_num_seqs=64,
        max_num_batched_tokens=512,
    )
    lengths = lognormal_lengths(500, prompt_mean=120, output_mean=80, sigma=0.6, seed=1)
    workload = from_rates("chat", [(100, 1.0), (150, 8.0), (350, 1.0)], lengths, seed=3)
    case = Case(name="chat", workload=workload, conditions=Conditions(engine=engine, cold_start_s=(20.0, 30.0)))
    lines: list[str] = []
    candidate = our_candidate(
        case,
        log=lambda record: lines.append(
            write_record(record, settings_hash=hash_settings(record.settings), with_settings=record.state is not None)
        ),
    )
    simulate(case.workload, case.conditions, candidate.make())
    path = tmp_path_factory.mktemp("log") / "decisions.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_same_configuration_decides_the_same(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", str(log)]) == 0
    said = capsys.readouterr().out
    assert "simulated/chat: 0 of " in said
    assert "open loop" in said


@pytest.mark.parametrize("config", [MANIFEST, "maxReplicas: 2\nslo: {ttft: 2s, itl: 100ms}\n", "max_replicas: 2\n"])
def test_another_bound_shows_where_it_would_have_held(
    log: Path, config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, results = tmp_path / "new.yaml", tmp_path / "differences.json"
    path.write_text(config)
    assert run(["replay", str(log), "--config", str(path), "--json", str(results)]) == 1
    said = capsys.readouterr().out
    assert "2 Steady, held by maxReplicas" in said
    written = json.loads(results.read_text())["simulated/chat"]
    assert written["most_replicas"]["replayed"] == 2
    assert written["most_replicas"]["recorded"] > 2
    assert written["replica_hours"]["replayed"] < written["replica_hours"]["recorded"]
    assert {each["replayed"]["desired"] for each in written["differences"]} <= {1, 2}


def test_a_schedule_shows_what_it_would_have_had_ready(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new.yaml"
    path.write_text(SURGE)
    assert run(["replay", str(log), "--config", str(path)]) == 1
    assert "3 Schedule, held by schedule" in capsys.readouterr().out


def test_a_cut_log_is_replayed_from_its_first_whole_line(log: Path, tmp_path: Path) -> None:
    lines = log.read_text().splitlines()
    cut = tmp_path / "cut.jsonl"
    cut.write_text("\n".join(["words of the process", *lines[5:]]) + "\n")
    assert run(["replay", str(cut)]) == 2


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ("minReplicas: 5\nmaxReplicas: 2\n", "write maxReplicas: 5 or more"),
        ("maxReplica: 2\n", "maxReplica"),
        (SURGE.replace("8", "2"), "write maxReplicas: 3 or more"),
        (SURGE.replace("UTC", "Mars"), "timeZone Mars is not known"),
        ("max_replicas: many\n", "max_replicas"),
        ("load_share: 0.9\nbase: 1\n", "base is no setting; write one of"),
        ("kv_occupancy_target: 7\n", "targets.kvOccupancy is 7, which is impossible"),
        ("- 1\n", "holds no settings"),
        ("a: [\n", "is no YAML"),
        ("kind: InferenceService\n", "apiVersion"),
    ],
)
def test_a_wrong_configuration_is_told_in_a_sentence(
    log: Path, config: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new.yaml"
    path.write_text(config)
    assert run(["replay", str(log), "--config", str(path)]) == 2
    assert sentence in capsys.readouterr().err


def test_what_is_no_log_is_told_in_a_sentence(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", str(tmp_path / "none.jsonl")]) == 2
    assert "is no file" in capsys.readouterr().err
    assert run(["replay", str(log), "--service", "other"]) == 2
    assert "holds no decision of other" in capsys.readouterr().err
    (tmp_path / "bad.jsonl").write_text('{"a": 1}\n')
    assert run(["replay", str(tmp_path / "bad.jsonl")]) == 2
    assert "line 1 is no decision" in capsys.readouterr().err
