"""The product of rows and 4-bit weights in Triton against its twin, and the GPU's packing against its definition."""

import pytest
import torch

from pagefleet.engine.kernels.triton.int4_linear import multiply
from pagefleet.engine.kernels.triton.int4_weight import GpuInt4Weight, dequantize, multiply_in_torch, pack_for_gpu
from tests.engine.kernels.triton_steps import DEVICE


def make_parts(outputs: int, groups: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return numbers, scales and zero points, with 16 among them."""
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randint(0, 16, (outputs, groups * 128), generator=generator)
    scales = torch.rand(outputs, groups, generator=generator) / 16 + 0.01
    zeros = torch.randint(0, 17, (outputs, groups), generator=generator)
    return numbers.to(DEVICE), scales.to(DEVICE), zeros.to(DEVICE)


def make_weight(outputs: int, groups: int) -> GpuInt4Weight:
    return pack_for_gpu(*make_parts(outputs, groups))


def test_the_packed_weight_stands_for_its_parts() -> None:
    numbers, scales, zeros = make_parts(5, 3)
    weight = pack_for_gpu(numbers, scales, zeros)
    wanted = (numbers - zeros.repeat_interleave(128, 1)).float() * scales.repeat_interleave(128, 1)
    assert torch.equal(dequantize(weight), wanted)
    assert (weight.inputs, weight.outputs) == (384, 5)
    assert weight.nbytes == 5 * (384 // 2 + 3 * 5)


def test_other_groups_are_refused() -> None:
    numbers, scales, zeros = make_parts(5, 3)
    with pytest.raises(ValueError, match="groups must be of 128 inputs; 2 groups of 384 inputs are not"):
        pack_for_gpu(numbers, scales[:, :2], zeros[:, :2])


@pytest.mark.parametrize(("tokens", "outputs", "groups"), [(1, 32, 1), (16, 50, 2), (17, 70, 3), (65, 64, 1)])
def test_sizes(tokens: int, outputs: int, groups: int) -> None:
    weight = make_weight(outputs, groups)
    rows = torch.randn(tokens, groups * 128, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    torch.testing.assert_close(multiply(rows, weight), multiply_in_torch(rows, weight), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 2e-3), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("tokens", [3, 20])
def test_number_formats(dtype: torch.dtype, tolerance: float, tokens: int) -> None:
    """Rows that are views of something wider."""
    weight = make_weight(40, 2)
    wide = torch.randn(tokens, 300, generator=torch.Generator().manual_seed(1)).to(DEVICE, dtype)
    rows = wide[:, 32:288]
    torch.testing.assert_close(multiply(rows, weight), multiply_in_torch(rows, weight), atol=0.05, rtol=tolerance)


def test_no_rows() -> None:
    assert multiply(torch.empty(0, 128, device=DEVICE), make_weight(8, 1)).shape == (0, 8)
