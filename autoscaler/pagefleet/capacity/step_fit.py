"""Fit the four terms of a step's time to measured steps, by non-negative least squares. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from pagefleet.capacity.errors import CannotPlan
from pagefleet.capacity.step_time import StepTime

TERMS = 4


@dataclass(frozen=True, kw_only=True)
class StepSample:
    """Hold one kind of step and what it took; means over alike steps are as good, since the model is linear."""

    prefill_tokens: float
    kv_tokens: float
    """Cached tokens that decodes read."""
    sequences: float
    """Sequences that decode."""
    step_s: float

    @property
    def terms(self) -> tuple[float, float, float, float]:
        """What multiplies base, prefill token, cached token and sequence."""
        return 1.0, self.prefill_tokens, self.kv_tokens, self.sequences


@dataclass(frozen=True, kw_only=True)
class StepFit:
    """Hold the fitted terms and how well they describe the samples."""

    step: StepTime
    r_squared: float
    """Share of the variance of step times that the terms explain."""
    residuals: tuple[float, ...]
    """Predicted less measured, as a share of measured, of each sample."""


def fit_step_time(samples: Sequence[StepSample]) -> StepFit:
    """Return the non-negative terms whose relative errors have the least squares; raises CannotPlan.

    Relative, because steps of 2 ms and of 2 s are measured with errors in proportion.
    """
    if len(samples) < TERMS or min(sample.step_s for sample in samples) <= 0:
        raise CannotPlan(f"{len(samples)} measured steps cannot tell {TERMS} terms: measure {TERMS} or more")
    scales = [max(sample.terms[term] for sample in samples) or 1.0 for term in range(TERMS)]
    rows = [[value / scale / each.step_s for value, scale in zip(each.terms, scales, strict=True)] for each in samples]
    best = min(_candidates(rows), key=lambda values: _squares(rows, values))
    base_s, prefill_token_s, kv_token_s, sequence_s = (value / scale for value, scale in zip(best, scales, strict=True))
    step = StepTime(
        base_s=base_s,
        prefill_token_s=prefill_token_s,
        kv_token_s=kv_token_s,
        sequence_s=sequence_s,
        source="measured",
    )
    predicted = [predict_step_s(step, sample) for sample in samples]
    mean_s = sum(sample.step_s for sample in samples) / len(samples)
    variance = sum((sample.step_s - mean_s) ** 2 for sample in samples)
    error = sum((one - sample.step_s) ** 2 for one, sample in zip(predicted, samples, strict=True))
    return StepFit(
        step=step,
        r_squared=1 - error / variance if variance else 1.0,
        residuals=tuple(one / sample.step_s - 1 for one, sample in zip(predicted, samples, strict=True)),
    )


def predict_step_s(step: StepTime, sample: StepSample) -> float:
    """Return what the terms give for a sample's step, in seconds."""
    values = (step.base_s, step.prefill_token_s, step.kv_token_s, step.sequence_s)
    return sum(value * factor for value, factor in zip(values, sample.terms, strict=True))


def _candidates(rows: list[list[float]]) -> list[list[float]]:
    """Return the least-squares solution of every set of terms that has no negative one; the others are 0.

    The constrained optimum is one of them, and 15 sets are fewer steps than an iteration that looks for it.
    """
    found = []
    for size in range(1, TERMS + 1):
        for active in combinations(range(TERMS), size):
            solved = _least_squares(rows, active)
            if solved is not None and min(solved) >= 0:
                values = [0.0] * TERMS
                for term, value in zip(active, solved, strict=True):
                    values[term] = value
                found.append(values)
    return found  # a single term has a positive solution, so there is always one


def _least_squares(rows: list[list[float]], active: tuple[int, ...]) -> list[float] | None:
    """Solve the normal equations for a target of 1 in each row; None where the terms are not independent."""
    matrix = [[sum(row[i] * row[j] for row in rows) for j in active] + [sum(row[i] for row in rows)] for i in active]
    size = len(active)
    for column in range(size):
        pivot = max(range(column, size), key=lambda line: abs(matrix[line][column]))
        if abs(matrix[pivot][column]) < 1e-12 * max(abs(value) for row in matrix for value in row):
            return None
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        for line in range(size):
            if line != column:
                factor = matrix[line][column] / matrix[column][column]
                matrix[line] = [a - factor * b for a, b in zip(matrix[line], matrix[column], strict=True)]
    return [matrix[line][size] / matrix[line][line] for line in range(size)]


def _squares(rows: list[list[float]], values: list[float]) -> float:
    return sum((sum(a * b for a, b in zip(row, values, strict=True)) - 1) ** 2 for row in rows)
