"""The C kernels over a packed cache: the numbers they store, the same bits whatever the batch, copies and limits."""

import pytest
import torch

from pagefleet.engine.kernels.cpu.cache import UNIT_TOKENS, UnitCache
from pagefleet.engine.kernels.cpu.packed_attention import PackedCpuAttention
from pagefleet.engine.kernels.interface import AttentionShape, LayerAttention
from pagefleet.engine.kernels.packed_format import pack_keys, pack_values, rotation
from tests.engine.kernels.packed_steps import Tokens, packed_shape, run_steps

DTYPES = [torch.float32, torch.bfloat16]
FORMATS = [("int8", 16, 64), ("int8", 48, 80), ("int4", 32, 96), ("k4v3", 64, 64), ("k4v3", 64, 256)]
"""With block and head sizes."""
LENGTHS = [330, 64, 81, 160, 1]
"""One is longer than a chunk of 256 positions, after which the kernel rescales."""


def whole(lengths: list[int]) -> list[list[tuple[int, int, int]]]:
    return [[(index, 0, length) for index, length in enumerate(lengths)]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "block_size", "head_dim"), FORMATS)
def test_stores_what_the_format_says(dtype: torch.dtype, name: str, block_size: int, head_dim: int) -> None:
    shape = packed_shape(name, block_size=block_size, head_dim=head_dim, dtype=dtype)
    assert shape.packed is not None
    tokens = Tokens(shape, [330])
    for rows in (tokens.keys[0], tokens.values[0]):
        rows *= torch.logspace(-6, 4, len(rows))[:, None, None]  # scales from the least to the largest
    attention = PackedCpuAttention(shape)
    run_steps(attention, tokens, whole([330]))
    slots = tokens.plain_slots.long()
    keys, values = (plain[slots] for plain in attention._cache.plain.token_major(1))
    stored_keys, stored_values = attention._cache.token_major(1)
    full = tokens.tables[0][shape.sink_blocks : 330 // block_size]
    expected_keys = pack_keys(keys[full], shape.packed.key_bits)
    expected_values = pack_values(values[full], shape.packed.value_bits)
    for part in ("codes", "scales", "least"):
        assert torch.equal(getattr(stored_keys, part)[full], getattr(expected_keys, part))
    for part in ("codes", "scales", "middles"):
        assert torch.equal(getattr(stored_values, part)[full], getattr(expected_values, part))
    written = stored_keys.codes.flatten(1).any(dim=1).nonzero().flatten().tolist()
    assert written == sorted(full)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [16, 64, 80, 96, 256])
def test_values_are_rotated(dtype: torch.dtype, head_dim: int) -> None:
    shape = packed_shape("int8", head_dim=head_dim, dtype=dtype)
    tokens = Tokens(shape, [10])
    attention = PackedCpuAttention(shape)
    run_steps(attention, tokens, whole([10]))
    _, values = attention._cache.plain.token_major(1)
    stored = values[int(tokens.plain_slots[tokens.tables[0][0]])][:10]
    expected = tokens.values[0].double() @ rotation(head_dim).double()
    assert torch.allclose(stored.double(), expected, atol=1e-6 if dtype == torch.float32 else 0.02)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layer", [LayerAttention(), LayerAttention(window=100, soft_cap=5.0)])
@pytest.mark.parametrize("heads", [(6, 2, 64), (5, 1, 96), (16, 1, 32), (2, 2, 256)])
@pytest.mark.parametrize("name", ["int8", "k4v3"])
def test_chunks_and_batches_give_the_same_bits(
    dtype: torch.dtype, layer: LayerAttention, heads: tuple[int, int, int], name: str
) -> None:
    query_heads, kv_heads, head_dim = heads
    shape = packed_shape(name, query_heads=query_heads, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype, layer=layer)
    tokens = Tokens(shape, LENGTHS)
    together = run_steps(PackedCpuAttention(shape), tokens, whole(LENGTHS))
    alone = [
        [(index, first, min(first + size, length))]
        for index, (length, size) in enumerate(zip(LENGTHS, (37, 16, 64, 50, 1), strict=True))
        for first in range(0, length, size)
    ]
    decodes = [[(index, 0, length - 7) for index, length in enumerate(LENGTHS) if length > 7]]
    decodes += [
        [(index, length - 7 + step, length - 6 + step) for index, length in enumerate(LENGTHS) if length > 7]
        for step in range(7)
    ]
    for steps in (alone, [*decodes, [(4, 0, 1)]]):
        for result, wanted in zip(run_steps(PackedCpuAttention(shape), tokens, steps), together, strict=True):
            assert torch.equal(result, wanted)


def test_a_copied_slot_continues_as_its_source() -> None:
    """A sequence that shares full blocks and takes a copy of the last goes on with the same bits."""
    shape = packed_shape("int8", block_size=16)
    tokens = Tokens(shape, [210])
    attention = PackedCpuAttention(shape)
    run_steps(attention, tokens, whole([200]))
    last, spare = tokens.tables[0][12], next(b for b in range(tokens.blocks_total) if b not in tokens.tables[0])
    attention.copy_blocks([int(tokens.plain_slots[last])], [int(tokens.plain_slots[spare])])
    tokens.tables[0][12] = spare
    wanted = run_steps(PackedCpuAttention(shape), Tokens(shape, [210]), whole([210]))[0]
    copied = run_steps(attention, tokens, [[(0, 200, 210)]], allocates=False)[0]
    assert torch.equal(copied[200:], wanted[200:])


def test_a_zeroed_slot_is_zero() -> None:
    shape = packed_shape("int8", block_size=16)
    tokens = Tokens(shape, [120])
    attention = PackedCpuAttention(shape)
    run_steps(attention, tokens, whole([120]))
    attention.zero(tokens.tables[0], tokens.plain_slots.tolist())
    assert not any(records.any() for records in attention._cache.records)
    assert not any(pool.any() for pool in (*attention._cache.plain.keys, *attention._cache.plain.values))


def test_keys_that_are_not_finite_stay_so() -> None:
    for broken in (torch.nan, torch.inf, -torch.inf):
        shape = packed_shape("int4", dtype=torch.float32)
        tokens = Tokens(shape, [200])
        tokens.keys[0][70, 0, 5] = broken
        result = run_steps(PackedCpuAttention(shape), tokens, whole([200]))[0]
        assert result[128:, :3].isnan().all()
        assert result[128:, 3:].isfinite().all()


def test_the_cache_is_as_large_as_the_shape_says() -> None:
    for name, block_size, head_dim in FORMATS:
        shape = packed_shape(name, block_size=block_size, head_dim=head_dim)
        attention = PackedCpuAttention(shape)
        attention.allocate(7, 2)
        assert sum(records[:1].nbytes for records in attention._cache.records) == shape.bytes_per_block
        assert isinstance(attention._cache.plain, UnitCache)
        assert attention._cache.plain.keys[0].shape[0] == 2
        assert block_size % UNIT_TOKENS == 0


@pytest.mark.parametrize(
    ("shape", "sentence"),
    [
        (packed_shape("int8", block_size=24), "multiple of 16, not 24"),
        (packed_shape("int8", head_dim=40), "multiple of 16 up to 256, not 40"),
    ],
)
def test_limits(shape: AttentionShape, sentence: str) -> None:
    assert sentence in (PackedCpuAttention.unsupported(shape) or "")
