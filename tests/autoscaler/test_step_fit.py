"""The fit finds the terms that made the samples, with noise and where some of them are nothing."""

import random
from dataclasses import replace
from typing import Any

import pytest

from pagefleet.capacity import CannotPlan
from pagefleet.capacity.step_fit import StepSample, fit_step_time, predict_step_s
from pagefleet.capacity.step_time import StepTime

TRUTH = StepTime(base_s=0.011, prefill_token_s=0.0025, kv_token_s=2e-6, sequence_s=0.0015)
LADDER = [(16, 0, 0), (64, 0, 0), (256, 0, 0)] + [(0, n * context, n) for n in (1, 4, 16) for context in (32, 256)]


def samples(step: StepTime, noise: float = 0.0) -> list[StepSample]:
    generator = random.Random(7)
    empty = [StepSample(prefill_tokens=p, kv_tokens=kv, sequences=n, step_s=0.0) for p, kv, n in LADDER]
    return [replace(one, step_s=predict_step_s(step, one) * (1 + noise * generator.uniform(-1, 1))) for one in empty]


def test_without_noise_the_terms_are_exact() -> None:
    found = fit_step_time(samples(TRUTH))
    for term in ("base_s", "prefill_token_s", "kv_token_s", "sequence_s"):
        assert getattr(found.step, term) == pytest.approx(getattr(TRUTH, term), rel=1e-6)
    assert found.r_squared == pytest.approx(1.0)
    assert found.step.source == "measured"


def test_noise_of_five_percent_moves_large_terms_by_less_than_ten() -> None:
    found = fit_step_time(samples(TRUTH, noise=0.05))
    for term in ("base_s", "prefill_token_s", "sequence_s"):
        assert getattr(found.step, term) == pytest.approx(getattr(TRUTH, term), rel=0.1)
    assert found.r_squared > 0.99
    assert max(map(abs, found.residuals)) < 0.1


@pytest.mark.parametrize("term", ["base_s", "kv_token_s", "sequence_s"])
def test_a_term_that_is_nothing_never_becomes_negative(term: str) -> None:
    none: dict[str, Any] = {term: 0.0}
    truth = replace(TRUTH, **none)
    found = fit_step_time(samples(truth, noise=0.05)).step
    assert min(found.base_s, found.prefill_token_s, found.kv_token_s, found.sequence_s) >= 0
    assert found.prefill_token_s == pytest.approx(truth.prefill_token_s, rel=0.1)


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(CannotPlan, match="3 measured steps cannot tell 4 terms: measure 4 or more"):
        fit_step_time(samples(TRUTH)[:3])
