"""The small C kernels against their twins in torch."""

import pytest
import torch

from pagefleet.engine.kernels.cpu.pointwise import CpuRmsNorm, make_rms_norm
from pagefleet.engine.kernels.cpu.sampling import argmax, argmax_in_torch
from pagefleet.engine.layers.norm import rms_norm


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [3, 8, 24, 384, 771])
def test_rms_norm(dtype: torch.dtype, width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    hidden = (3 * torch.randn(5, width, generator=generator)).to(dtype)
    weight = torch.randn(width, generator=generator).to(dtype)
    kernel = make_rms_norm(dtype)
    assert isinstance(kernel, CpuRmsNorm)
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    actual, expected = kernel(hidden, weight, 1e-5).float(), rms_norm(hidden, weight, 1e-5).float()
    assert torch.allclose(actual, expected, atol=tolerance, rtol=tolerance)
    assert torch.equal(kernel(hidden[2:3], weight, 1e-5)[0].float(), actual[2])


@pytest.mark.parametrize("width", [1, 7, 16, 100, 1003, 1024, 2500])
def test_argmax(width: int) -> None:
    logits = torch.randn(40, width, generator=torch.Generator().manual_seed(width))
    logits[3] = logits[3].round()  # ties: the first wins
    logits[4, width // 2] = torch.nan
    logits[5] = -torch.inf
    logits[6, width - 1] = torch.inf
    logits[7] = -torch.inf
    logits[7, width // 3] = -2.0
    tokens = argmax(logits)
    assert tokens == argmax_in_torch(logits)
    assert tokens[4:8] == [None, None, None, width // 3]


def test_argmax_of_a_strided_tensor() -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
    assert argmax(logits[:, ::2]) == argmax_in_torch(logits[:, ::2])
    assert argmax(logits[::2]) == argmax_in_torch(logits[::2])
