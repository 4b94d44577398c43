"""Rounding to few bits: bounds of its error, the bytes it takes, and numbers that are hard to round."""

import pytest
import torch

from pagefleet.engine.kernels.packed_cache import PackedCache
from pagefleet.engine.kernels.packed_format import (
    PACKED_FORMATS,
    SCALES,
    join_bits,
    pack_keys,
    pack_values,
    rotation,
    scale_codes,
    split_bits,
)
from tests.engine.kernels.packed_steps import packed_shape


def draw(*size: int) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("bits", [8, 4, 3])
def test_bits_are_joined_and_split(bits: int) -> None:
    codes = torch.randint(0, 2**bits, (5, 3, 48), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    stored = join_bits(codes, bits)
    assert stored.shape == (5, 3, 48 * bits // 8)
    assert torch.equal(split_bits(stored, bits), codes)


def test_scales_are_the_least_of_the_grid_that_are_no_smaller() -> None:
    wanted = torch.cat([SCALES, SCALES * 1.01, SCALES * 0.99, torch.tensor([0.0, 1e-30])])
    found = SCALES[scale_codes(wanted).int()]
    in_range = wanted <= SCALES[-1]
    assert (found >= wanted)[in_range].all()
    tight = in_range & (wanted > SCALES[0])
    assert (found[tight] < wanted[tight] * 2 ** (1 / 8) * 1.0001).all()
    assert (found[~in_range] == SCALES[-1]).all()


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("bias", [0.0, 100.0, -3000.0], ids=lambda bias: f"bias {bias}")
def test_keys_keep_within_half_a_step_of_a_biased_channel(bits: int, bias: float) -> None:
    """A bias of a hundred ranges, as Qwen2.5's keys have, costs half a percent of itself in range, not the channel."""
    keys = draw(4, 64, 2, 16)
    keys[..., 3] += bias
    error = (pack_keys(keys, bits).plain() - keys).abs()
    spread = keys.amax(dim=1) - keys.amin(dim=1) + keys.abs().amax(dim=1) / 128
    step = 2 ** (1 / 8) * spread / (2**bits - 1)
    assert (error <= step[:, None] / 2 + keys.abs() * 1e-6).all()


@pytest.mark.parametrize("bits", [8, 4, 3])
def test_values_keep_within_a_step(bits: int) -> None:
    values = draw(3, 16, 2, 64)
    values[0, 0] += 2  # all on one side
    error = (pack_values(values, bits).plain(bits) - values).abs()
    spread = (values.amax(dim=-1) - values.amin(dim=-1)) / (2**bits - 1)
    middle = (values.amax(dim=-1) + values.amin(dim=-1)).abs() / 127
    step = 2 ** (1 / 8) * torch.maximum(spread, middle)
    assert (error <= 0.76 * step[..., None]).all()


def test_constant_and_zero_blocks_come_back() -> None:
    for number in (0.0, 0.75, -12.0):
        keys, values = torch.full((1, 32, 1, 16), number), torch.full((1, 32, 1, 16), number)
        assert torch.allclose(pack_keys(keys, 4).plain(), keys, atol=1e-6)
        assert torch.allclose(pack_values(values, 4).plain(4), values, rtol=0.02, atol=1e-6)


@pytest.mark.parametrize("head_dim", [8, 64, 80, 96, 128])
def test_rotation_is_its_own_inverse(head_dim: int) -> None:
    turn = rotation(head_dim)
    assert torch.allclose(turn @ turn, torch.eye(head_dim), atol=1e-6)
    outlier = torch.zeros(head_dim)
    outlier[5] = 1.0
    assert (outlier @ turn).abs().max() <= 0.36


@pytest.mark.parametrize(("name", "share"), [("int8", 0.53), ("int4", 0.29), ("k4v3", 0.25)])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_bytes_per_block_are_those_of_the_pools_and_few(name: str, share: float, head_dim: int) -> None:
    shape = packed_shape(name, head_dim=head_dim, dtype=torch.bfloat16)
    assert shape.packed is not None
    assert PackedCache(shape, shape.packed, 3, 2).bytes_per_block == shape.bytes_per_block
    assert shape.bytes_per_block <= share * shape.plain_bytes_per_block


def test_the_names_are_those_of_the_flag() -> None:
    assert list(PACKED_FORMATS) == ["int8", "int4", "k4v3"]
