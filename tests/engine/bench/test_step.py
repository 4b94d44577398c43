"""`bench step` on a tiny model: the measured steps are decodes at the context asked for, their parts make the whole."""

import json
from functools import partial
from pathlib import Path
from statistics import mean

import pytest
import torch

from pagefleet.engine.bench.machine_rates import measure_rates
from pagefleet.engine.bench.roofline import MachineRates
from pagefleet.engine.bench.step import BatchSteps, StepOptions, run_step
from pagefleet.engine.bench.step_parts import PartTimers, StepParts
from pagefleet.engine.config import EngineConfig
from pagefleet.engine.core import EngineCore
from pagefleet.engine.errors import StartupError
from pagefleet.engine.llm import LLM
from pagefleet.engine.messages import AddRequest, CoreState, StepOutputs
from pagefleet.engine.sampling_params import SamplingParameters
from tests.support.tiny_models import make_tiny_llama

engine_config = partial(
    EngineConfig, device="cpu", dtype="float32", threads=1, attention_backend="gather", linear_backend="torch"
)


def tiny_rates(dtype: torch.dtype) -> MachineRates:
    return measure_rates(dtype, gemm_size=64, stream_bytes=2**20)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_tiny_llama(tmp_path / "model")


def test_measured_steps_are_decodes_around_the_context(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[CoreState] = []
    step = EngineCore.step

    def watched(core: EngineCore) -> StepOutputs:
        outputs = step(core)
        states.append(outputs.state)
        return outputs

    monkeypatch.setattr(EngineCore, "step", watched)
    lines: list[str] = []
    options = StepOptions(
        engine=engine_config(model=str(folder)),
        batches=[5, 1, 5],
        context_tokens=50,
        steps=8,
        json_path=tmp_path / "step.json",
        measure=tiny_rates,
    )
    report = run_step(options, lines.append)
    assert json.loads((tmp_path / "step.json").read_text()) == report
    batches = report["batches"]
    assert isinstance(batches, list)
    assert [(each["sequences"], each["steps"]) for each in batches] == [(1, 8), (5, 8)]
    for batch, measured in ((5, states[-8:]), (1, [state for state in states if state.running == 1][-8:])):
        assert [state.step_tokens for state in measured] == [batch] * 8
        assert mean(state.tokens_active / batch for state in measured) == 50.5, "8 steps, from 47 to 54 tokens"
        assert all(state.running == batch for state in measured)
    assert all(0 < each["scheduling_share"] < 1 and each["output_tokens_per_second"] > 0 for each in batches)
    assert all(0 < each["python_seconds"]["best"] <= each["python_seconds"]["median"] for each in batches)
    stream_s = report["weight_bytes"] / report["stream_gigabytes_per_second"] / 1e9  # type: ignore[operator]
    ratios = {name: batches[0][f"{name}_seconds"]["best"] / stream_s for name in ("wall", "cpu")}
    assert report["stream_ratio"] == pytest.approx(ratios, rel=0.05)
    assert "1 sequence: its best step takes" in lines[-1]


def test_parts_make_the_whole_and_timers_leave_nothing_behind(folder: Path) -> None:
    core = LLM(engine_config(model=str(folder), max_model_len=64)).core
    sampling = SamplingParameters(max_tokens=8, ignore_eos=True)
    core.add_all([AddRequest(request_id="a", prompt_token_ids=[1, 2, 3], sampling=sampling)])
    schedule = core.scheduler.schedule
    with PartTimers(core) as timers:
        assert core.scheduler.schedule != schedule
        outputs, parts = timers.step()
        _, second = timers.step()
    assert len(outputs.outputs) == 1
    for each in (parts, second):
        assert min(each.scheduling_s, each.model_s, each.python_s) > 0
        assert each.scheduling_s + each.model_s + each.python_s <= each.cpu_s
    assert core.scheduler.schedule == schedule
    assert "schedule" not in vars(core.scheduler)


def test_statistics_by_hand() -> None:
    steps = [
        StepParts(wall_s=wall_s, cpu_s=0.5, scheduling_s=0.1, model_s=0.7, python_s=0.2) for wall_s in (2.0, 1.0, 4.0)
    ]
    batch = BatchSteps(sequences=6, steps=steps, other_busy_cores=0.0)
    assert (batch.best_s("wall_s"), batch.median_s("wall_s")) == (1.0, 2.0)
    assert batch.scheduling_share == pytest.approx(0.1)
    assert batch.tokens_per_s == 3.0


def test_a_batch_that_the_cache_cannot_hold_is_named(folder: Path) -> None:
    engine = engine_config(model=str(folder), kv_cache_memory_bytes=96 * 1024)
    options = StepOptions(engine=engine, batches=[8], context_tokens=50, steps=8, measure=tiny_rates)
    with pytest.raises(
        StartupError, match=r"--batches 8 is too large: the KV cache has 24 blocks of 16 tokens; .*--batches 4"
    ):
        run_step(options, print)
