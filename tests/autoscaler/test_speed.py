"""What a replica can do: planned, measured, learned without a plan, and out of reach."""

import random
from dataclasses import replace

import pytest

from pagefleet.api.capacity import CapacityReport
from pagefleet.api.v1alpha1 import InferenceService
from pagefleet.autoscaler.service_settings import settings_of
from pagefleet.autoscaler.settings import Settings
from pagefleet.autoscaler.speed import learn_speed, service_rate, speed_source, unreachable
from pagefleet.autoscaler.state import State
from pagefleet.capacity.step_time import StepTime
from tests.autoscaler.snapshots import SETTINGS, SPEED, reading

CPU = StepTime(base_s=0.03, prefill_token_s=4e-4, kv_token_s=1e-7, sequence_s=2.5e-3)
UNPLANNED = replace(SETTINGS, speed=replace(SPEED, step=None))
SEEN = State(prompt_tokens=120.0, output_tokens=80.0)


def steps_of(step: StepTime, batch: float, *, prompts: float = 0.2, noise: float = 1.0, steps: int = 60):  # type: ignore[no-untyped-def]
    """Return two reports between which an engine made steps of so many sequences."""
    counts = {
        "steps_total": steps,
        "computed_tokens_total": round(steps * prompts * batch * 4),
        "kv_tokens_read_total": round(steps * batch * 160),
        "sequence_steps_total": round(steps * batch),
    }
    took_s = step.total_s(
        steps=steps,
        prefill_tokens=counts["computed_tokens_total"],
        kv_tokens=counts["kv_tokens_read_total"],
        sequences=counts["sequence_steps_total"],
    )
    return reading(0.0), reading(5.0, step_seconds_total=took_s * noise, **counts)


def learned(batches: list[float], settings: Settings = UNPLANNED, *, noise: float = 0.0) -> State:
    draws, state = random.Random(1), SEEN
    for number, batch in enumerate(batches):
        pair = steps_of(CPU, batch, prompts=draws.random(), noise=draws.lognormvariate(0, noise))
        state = learn_speed([pair], state, settings, 60.0 * number)
    return state


@pytest.mark.parametrize(("noise", "error"), [(0.0, 0.01), (0.05, 0.1)])
def test_terms_are_learned_from_steps_of_many_kinds(noise: float, error: float) -> None:
    state = learned([1, 2, 3, 5, 8, 12, 3, 6, 10, 1, 4, 16] * 2, noise=noise)
    planned = service_rate(SEEN, replace(SETTINGS, speed=replace(SPEED, step=CPU)))
    assert planned is not None
    assert service_rate(state, UNPLANNED) == pytest.approx(planned, rel=error)
    assert speed_source(state, UNPLANNED) == "learned"


def test_steps_that_are_all_alike_teach_nothing() -> None:
    state = learned([4.0] * 40)
    assert state.learned_step is None
    assert service_rate(state, UNPLANNED) is None
    assert speed_source(state, UNPLANNED) is None


def test_steps_that_no_terms_explain_are_not_believed() -> None:
    assert learned([1, 2, 3, 5, 8, 12, 16] * 3, noise=1.5).learned_step is None


def test_few_steps_are_no_mean() -> None:
    pairs = [steps_of(CPU, batch, steps=3) for batch in (1, 2, 4, 8, 16, 32)]
    assert learn_speed(pairs, State(), UNPLANNED, 0.0).steps_seen == ()


def test_learned_terms_follow_an_engine_that_becomes_slower() -> None:
    state = learned([1, 2, 3, 5, 8, 12, 3, 6, 10])
    before = service_rate(state, UNPLANNED)
    for tick in range(100):
        state = learn_speed([steps_of(CPU, 5.0, noise=1.3)], state, UNPLANNED, 1000.0 + 5 * tick)
    after = service_rate(state, UNPLANNED)
    assert before is not None
    assert after is not None
    assert after < 0.9 * before


def test_a_plan_that_was_never_measured_says_so() -> None:
    assert speed_source(State(), SETTINGS) == "plan"
    assert speed_source(State(time_scale=1.1), SETTINGS) == "corrected"


class TestOutOfReach:
    state = State(prompt_tokens=40_000.0, output_tokens=200.0)

    def test_the_first_token_of_one_request_alone(self) -> None:
        sentence = unreachable(self.state, SETTINGS)
        assert sentence == "one request alone takes 3.5 s to the first token, 2 s asked; write ttft: 3.6s or more"
        assert unreachable(self.state, replace(SETTINGS, ttft_slo_s=3.6)) is None

    def test_the_next_token_of_one_request_alone(self) -> None:
        state, settings = State(prompt_tokens=1155.0, output_tokens=211.0), replace(SETTINGS, itl_slo_s=0.01)
        sentence = unreachable(state, settings)
        assert sentence == ("one request alone takes 18.1 ms from token to token, 10 ms asked; write itl: 22ms or more")
        assert service_rate(state, settings) is None
        assert unreachable(state, replace(settings, itl_slo_s=0.022)) is None
        assert service_rate(state, replace(settings, itl_slo_s=0.022)) is not None

    def test_what_is_not_asked_or_not_known_is_not_missed(self) -> None:
        assert unreachable(self.state, replace(SETTINGS, ttft_slo_s=None, itl_slo_s=None)) is None
        assert unreachable(self.state, UNPLANNED) is None


def test_engines_tell_what_no_plan_does() -> None:
    service = InferenceService.model_validate(
        {
            "metadata": {"name": "chat", "namespace": "default"},
            "spec": {"model": {"uri": "hf://org/name"}, "autoscaling": {"maxReplicas": 3}},
        }
    )
    assert (bare := settings_of(service)) is not None
    assert bare.speed is None
    report = CapacityReport.model_validate(
        {"phase": "Ready", "blocks_total": 100, "block_size": 16, "max_num_seqs": 8, "max_num_batched_tokens": 512}
    )
    assert (known := settings_of(service, [report])) is not None
    assert known.speed is not None
    assert (known.speed.step, known.speed.kv_tokens, known.speed.max_num_seqs) == (None, 1600, 8)
