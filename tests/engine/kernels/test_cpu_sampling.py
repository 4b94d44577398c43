"""The C draw against its twin in torch: the same tokens, for the same seeds."""

from typing import Any

import pytest
import torch

from pagefleet.engine.kernels.cpu.sampling import can_draw
from pagefleet.engine.sampler import _draw, draw_in_torch
from pagefleet.engine.sequence import Sequence
from tests.support.sequences import make_sequence

ROWS = 300


def sequences(rows: int, **sampling: Any) -> list[Sequence]:
    made = []
    for seed in range(rows):
        each = make_sequence("s", prompt=3, max_tokens=100, seed=seed * 7_919_777_777, **sampling)
        for token in range(seed % 5):
            each.append(token, frozenset())
        made.append(each)
    return made


@pytest.mark.parametrize("width", [3, 40, 1003])
@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 0.3},
        {"top_p": 0.9},
        {"top_p": 1e-6},
        {"top_k": 1},
        {"top_k": 7, "top_p": 0.8},
        {"top_k": 500, "temperature": 2.0},
        {"top_k": 10_000},
        {"min_p": 0.05, "top_p": 0.95, "top_k": 100},
    ],
)
def test_the_same_tokens_as_torch(width: int, sampling: dict[str, Any]) -> None:
    logits = 3 * torch.randn(ROWS, width, generator=torch.Generator().manual_seed(width))
    logits[:, 0] = -torch.inf  # a token that the request forbids
    logits[:20] = logits[:20].round()  # ties
    asked = sequences(ROWS, **sampling)
    assert can_draw(logits)
    expected = draw_in_torch(logits.clone(), asked)
    assert _draw(logits.clone(), asked) == expected
    assert 0 not in expected
    alone = [_draw(logits[i : i + 1].clone(), asked[i : i + 1])[0] for i in range(0, ROWS, 50)]
    assert alone == expected[::50]


def test_one_possible_token() -> None:
    logits = torch.full((4, 70), -torch.inf)
    logits[:, 66] = -5.0
    assert _draw(logits, sequences(4, top_p=0.5)) == [66] * 4


def test_torch_draws_what_the_kernel_cannot() -> None:
    wide = torch.randn(6, 80, generator=torch.Generator().manual_seed(0))
    assert not can_draw(wide[:, ::2])
    assert _draw(wide[:, ::2], sequences(6)) == _draw(wide[:, ::2].contiguous(), sequences(6))
