"""The Triton kernels of a packed cache against their torch twin: in the interpreter, on a GPU where there is one."""

from typing import Any

import pytest
import torch

from pagefleet.engine.decode_graphs import CudaCapture
from pagefleet.engine.kernels.choose import PACKED_BACKENDS
from pagefleet.engine.kernels.interface import LayerAttention
from pagefleet.engine.kernels.triton import attention as back_end
from pagefleet.engine.kernels.triton.packed_attention import PackedTritonAttention
from pagefleet.engine.layers.rotary import RotaryTable
from tests.engine.kernels.packed_steps import Tokens, expected, packed_shape, run_steps
from tests.engine.kernels.triton_packed_steps import (
    attend_both,
    caches_of,
    make_packed_batch,
    make_packed_shape,
    make_rows,
    twin_caches,
    with_history,
)
from tests.engine.kernels.triton_steps import DEVICE
from tests.support.models import UNAVAILABLE

MIXED = [(1, 133), (5, 130), (1, 1)]
"""(New tokens, context with them): packed blocks, a chunk that crosses into a block, a sink alone."""

TOLERANCE = {torch.float32: 5e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@pytest.mark.parametrize(("name", "block_size"), [("int8", 16), ("int4", 32), ("k4v3", 64)])
@pytest.mark.parametrize("head_dim", [32, 80])
def test_formats(name: str, block_size: int, head_dim: int) -> None:
    shape = make_packed_shape(name, block_size=block_size, head_dim=head_dim, kv_heads=1, query_heads=3)
    actual, wanted = attend_both(shape, MIXED)
    torch.testing.assert_close(actual, wanted, atol=5e-6, rtol=0)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_number_formats(dtype: torch.dtype) -> None:
    actual, wanted = attend_both(make_packed_shape("int4", cache_dtype=dtype), [(1, 150), (3, 130)])
    torch.testing.assert_close(actual, wanted, atol=TOLERANCE[dtype], rtol=0)


@pytest.mark.parametrize(
    "layer",
    [
        LayerAttention(window=150),
        LayerAttention(window=70),
        LayerAttention(window=3),
        LayerAttention(soft_cap=2.0, scale=0.3),
    ],
)
def test_layers_that_attend_otherwise(layer: LayerAttention) -> None:
    actual, wanted = attend_both(make_packed_shape("k4v3", layer), [(1, 201), (6, 133)])
    torch.testing.assert_close(actual, wanted, atol=5e-6, rtol=0)


@pytest.mark.parametrize(("splits", "window"), [(2, None), (3, 100), (9, None)])
def test_splits(monkeypatch: pytest.MonkeyPatch, splits: int, window: int | None) -> None:
    """Of 9 splits some get no key; the last gets the plain ones."""
    monkeypatch.setattr(back_end, "choose_splits", lambda **_: splits)
    shape = make_packed_shape("int4", LayerAttention(window=window), block_size=32, query_heads=2, kv_heads=1)
    actual, wanted = attend_both(shape, [(1, 200), (1, 1), (2, 30)])
    torch.testing.assert_close(actual, wanted, atol=5e-6, rtol=0)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    ("name", "block_size", "head_dim"),
    [("int8", 16, 32), ("int4", 32, 80), ("k4v3", 64, 96), ("k4v3", 128, 32)],
)
def test_blocks_are_packed_as_by_the_twin(name: str, block_size: int, head_dim: int, dtype: torch.dtype) -> None:
    """A chunk that fills one block and begins another, after one that fills a sink; every stored byte is the same."""
    shape = make_packed_shape(name, block_size=block_size, head_dim=head_dim, kv_heads=1, cache_dtype=dtype)
    end = 2 * max(64, block_size)
    sequences = [(3, end + 1), (1, 64)]
    attention, twin = with_history(shape, sequences)
    batch, _ = make_packed_batch(sequences, block_size)
    _, key, value = make_rows(shape, 4, seed=2)
    value[0] = 7.0  # no range at all
    key[0, :, 3] = -3e4
    for one in (attention, twin):
        one.begin_step(batch)
        one.store(0, key, value)
    filled = batch.block_tables[0][end // block_size - 1]
    assert caches_of(attention)[2][filled].any(), "the block has been packed"
    for actual, wanted in zip(caches_of(attention), twin_caches(twin), strict=True):
        assert torch.equal(actual, wanted)


def test_steps_from_nothing_equal_the_definition() -> None:
    shape = packed_shape("int4", query_heads=2, kv_heads=1, head_dim=32, block_size=32)
    tokens = Tokens(shape, [110, 3])
    results = run_steps(
        PackedTritonAttention(shape), tokens, [[(0, 0, 100), (1, 0, 3)], [(0, 100, 109)], [(0, 109, 110)]]
    )
    for result, wanted in zip(results, expected(tokens), strict=True):
        assert torch.allclose(result.double(), wanted, atol=2e-3)
        assert (result.double() - wanted).abs().mean() < 2e-5


def test_rotated_rows_are_stored_and_packed() -> None:
    """The last token of a block, by the fused call over QKV rows that models use."""
    shape = make_packed_shape("int8", block_size=16, query_heads=2, kv_heads=1)
    sequences = [(1, 96), (2, 20)]
    attention, twin = with_history(shape, sequences)
    batch, _ = make_packed_batch(sequences, 16)
    generator = torch.Generator().manual_seed(4)
    qkv = torch.randn(3, 4 * 32, generator=generator).to(DEVICE)
    angles = torch.randn(3, 1, 32, generator=generator).to(DEVICE)
    rotary = RotaryTable(angles.cos(), angles.sin())
    results = []
    for one in (attention, twin):
        one.begin_step(batch)
        results.append(one.forward(0, qkv.clone(), rotary))
    torch.testing.assert_close(results[0], results[1], atol=2e-3, rtol=0)
    assert caches_of(attention)[2][batch.block_tables[0][5]].any(), "the block has been packed"


def test_padded_decodes_read_and_write_nothing() -> None:
    """A captured step has more rows and fills than sequences; one of the two fills a block."""
    shape = make_packed_shape("int8", block_size=16, query_heads=2, kv_heads=1)
    sequences = [(1, 96), (1, 70)]
    attention, twin = with_history(shape, sequences)
    batch, _ = make_packed_batch(sequences, 16)
    query, key, value = make_rows(shape, 4, seed=2)
    attention.reserve(sequences=4, rows=4, longest_context=256)
    addresses = attention.buffer_addresses
    attention.begin_decodes(batch, rows=4, longest_context=256)
    assert (attention._items.decodes, attention._items.fills) == (4, 4)
    attention.store(0, key, value)
    twin.begin_step(batch)
    twin.store(0, key[:2], value[:2])
    for actual, wanted in zip(caches_of(attention), twin_caches(twin), strict=True):
        # Four rows are rotated in another order of sums than two.
        torch.testing.assert_close(actual, wanted, atol=1e-6, rtol=0)
    torch.testing.assert_close(attention.attend(0, query)[:2], twin.attend(0, query[:2]), atol=5e-6, rtol=0)
    assert attention.buffer_addresses == addresses


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason=f"a GPU {UNAVAILABLE}")
def test_a_captured_step_is_replayed_for_others() -> None:
    """Captured over nobody, as `DecodeGraphs` does; of the two that it is replayed for, one fills its block."""
    shape = make_packed_shape("k4v3", query_heads=4, kv_heads=2, head_dim=64, cache_dtype=torch.bfloat16)
    sequences = [(1, 192), (1, 150)]
    attention, twin = with_history(shape, sequences)
    batch, _ = make_packed_batch(sequences, shape.block_size)
    nobody, _ = make_packed_batch([], shape.block_size)
    query, key, value = make_rows(shape, 4, seed=2)
    attention.reserve(sequences=4, rows=4, longest_context=512)

    def step() -> torch.Tensor:
        attention.store(0, key, value)
        return attention.attend(0, query)

    attention.begin_decodes(nobody, rows=4, longest_context=512)
    replay = CudaCapture()(step)
    attention.begin_decodes(batch, rows=4, longest_context=512)
    attended = replay()[:2]
    twin.begin_step(batch)
    twin.store(0, key[:2], value[:2])
    torch.testing.assert_close(attended, twin.attend(0, query[:2]), atol=3e-2, rtol=0)
    for actual, wanted in zip(caches_of(attention), twin_caches(twin), strict=True):
        torch.testing.assert_close(actual.float(), wanted.float(), atol=1, rtol=0)


@pytest.mark.filterwarnings("ignore:All-NaN slice", "ignore:invalid value")  # numpy's, in the interpreter
def test_what_is_not_finite_stays_so_until_it_is_cleared() -> None:
    shape = make_packed_shape("int8", block_size=16, query_heads=2, kv_heads=1)
    sequences = [(1, 80)]
    attention, _ = with_history(shape, sequences)
    batch, blocks = make_packed_batch(sequences, 16)
    query, key, value = make_rows(shape, 1, seed=2)
    key[0, 0, 5] = torch.inf
    attention.begin_step(batch)
    attention.store(0, key, value)
    later, _ = make_packed_batch([(1, 81)], 16)
    later.block_tables[0][:] = [*batch.block_tables[0], (set(range(blocks)) - set(batch.block_tables[0])).pop()]
    later = type(later)(**{**later.__dict__, "plain_slots": batch.plain_slots})
    assert batch.plain_slots is not None
    later.slots[0] = int(batch.plain_slots[later.block_tables[0][-1]]) * 16
    attention.begin_step(later)
    assert attention.attend(0, query).isnan().all()
    attention.zero(list(range(blocks)), list(range(blocks)))
    assert attention.attend(0, query).isfinite().all()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"head_dim": 36}, "a head size that is a multiple of 8, not 36"),
        ({"block_size": 48}, "packs blocks of 16, 32, 64 or 128 tokens, not 48"),
        ({"block_size": 256}, "not 256"),
        ({"cache_dtype": torch.int8}, "no cache in torch.int8"),
    ],
)
def test_limits(options: dict[str, Any], sentence: str) -> None:
    shape = make_packed_shape("int8", **options)
    assert sentence in (PACKED_BACKENDS["triton"].unsupported(shape) or "")
    assert PACKED_BACKENDS["triton"].unsupported(make_packed_shape("int8")) is None


def test_pools_take_what_the_shape_says() -> None:
    for name in ("int8", "int4", "k4v3"):
        shape = make_packed_shape(name, head_dim=96)
        attention = PackedTritonAttention(shape)
        attention.allocate(3, 1)
        assert attention._pools.bytes_per_block == shape.bytes_per_block
