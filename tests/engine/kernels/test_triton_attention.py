"""The Triton kernels against the plain reference: in the interpreter, on a GPU where there is one."""

from typing import Any

import pytest
import torch

from pagefleet.engine.errors import StartupError
from pagefleet.engine.kernels.choose import choose_attention
from pagefleet.engine.kernels.gather import GatherAttention
from pagefleet.engine.kernels.interface import AttentionBatch, LayerAttention
from pagefleet.engine.kernels.reference import ReferenceAttention
from pagefleet.engine.kernels.triton import attention as back_end
from pagefleet.engine.kernels.triton import tiles
from pagefleet.engine.kernels.triton.attention import TritonAttention
from pagefleet.engine.layers.rotary import RotaryTable, rotate
from tests.engine.kernels.triton_steps import DEVICE, attend_both, fill, make_batch, make_query, make_shape

MIXED = [(1, 21), (9, 30), (1, 1), (3, 3)]
"""(new tokens, context with them) of each sequence."""

TOLERANCE = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("block_size", [1, 8, 16, 32, 64, 128])
def test_block_sizes(block_size: int) -> None:
    actual, expected = attend_both(make_shape(block_size=block_size), MIXED)
    torch.testing.assert_close(actual, expected, atol=3e-6, rtol=0)


@pytest.mark.parametrize(
    ("query_heads", "kv_heads", "head_dim"),
    [(2, 2, 64), (3, 1, 80), (7, 1, 96), (2, 1, 128), (1, 1, 256), (20, 1, 16), (4, 2, 8)],
)
def test_heads(query_heads: int, kv_heads: int, head_dim: int) -> None:
    shape = make_shape(query_heads=query_heads, kv_heads=kv_heads, head_dim=head_dim)
    actual, expected = attend_both(shape, [(1, 40), (6, 19)])
    torch.testing.assert_close(actual, expected, atol=3e-6, rtol=0)


@pytest.mark.parametrize("cache_dtype", TOLERANCE)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_number_formats(cache_dtype: torch.dtype, dtype: torch.dtype) -> None:
    actual, expected = attend_both(make_shape(cache_dtype=cache_dtype, query_heads=2), [(1, 33), (4, 20)], dtype)
    tolerance = max(TOLERANCE[dtype], TOLERANCE[cache_dtype] if DEVICE.type == "cuda" else 0)
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fp8_cache(dtype: torch.dtype) -> None:
    shape = make_shape(cache_dtype=torch.float8_e4m3fn, query_heads=2)
    actual, expected = attend_both(shape, [(1, 33), (4, 20)], dtype)
    torch.testing.assert_close(actual, expected, atol=TOLERANCE[dtype], rtol=0)


def test_fp8_rows_are_stored_and_cleared() -> None:
    """Numbers too large become the largest; what is cleared is so in every block."""
    shape = make_shape(cache_dtype=torch.float8_e4m3fn)
    attention = TritonAttention(shape)
    batch, blocks = make_batch([(3, 18)], shape.block_size)
    attention.allocate(blocks)
    attention.begin_step(batch)
    rows = torch.rand(3, 2, 64, generator=torch.Generator().manual_seed(3)).to(DEVICE) + 0.1
    if DEVICE.type == "cpu":  # the interpreter loses the carry of what rounds up to a power of two
        rows = rows.to(torch.float8_e4m3fn).float()
    rows[0, 0, :4] = torch.tensor([500.0, -1e6, 448.0, -416.0])
    attention.store(0, rows, -rows)
    keys, values = (
        cache[0].transpose(1, 2).flatten(0, 1)[batch.slots].float()
        for cache in (attention._cache.keys, attention._cache.values)
    )
    wanted = rows.clamp(-448, 448).to(torch.float8_e4m3fn).float()
    assert torch.equal(keys, wanted)
    assert torch.equal(values, -wanted)
    attention.copy_blocks(batch.block_tables[0][:1], [blocks - 1])
    attention.zero(list(range(blocks)))
    assert not attention._cache.keys[0].float().any()


def test_gpus_without_fp8_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(back_end, "device_refusal", lambda _, kernel: None)  # noqa: ARG005
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda _: (8, 0))
    shape = make_shape(cache_dtype=torch.float8_e4m3fn, device=torch.device("cuda"))
    assert TritonAttention.unsupported(shape) == (
        "a KV cache in fp8 needs compute capability 8.9 or newer, not 8.0; use bfloat16 or int8"
    )
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda _: (8, 9))
    assert TritonAttention.unsupported(shape) is None
    assert "fp8 needs the Triton attention kernel" in (GatherAttention.unsupported(shape) or "")


@pytest.mark.parametrize(
    "layer",
    [
        LayerAttention(window=12),
        LayerAttention(window=1),
        LayerAttention(window=1000),
        LayerAttention(soft_cap=2.0),
        LayerAttention(scale=0.7, window=17, soft_cap=5.0),
        LayerAttention(scale=300.0, soft_cap=30.0),
    ],
)
def test_layers_that_attend_otherwise(layer: LayerAttention) -> None:
    """A scale of 300 takes scores to where the exponential in a hyperbolic tangent overflows."""
    actual, expected = attend_both(make_shape(layer), [(1, 80), (18, 50)])
    torch.testing.assert_close(actual, expected, atol=5e-6 * (layer.scale or 1), rtol=0)
    if layer.window != 1000:
        plain, _ = attend_both(make_shape(), [(1, 80), (18, 50)])
        assert not torch.allclose(plain, expected, atol=1e-2)


@pytest.mark.parametrize("splits", [2, 3, 32])
@pytest.mark.parametrize("window", [None, 70])
def test_splits(monkeypatch: pytest.MonkeyPatch, splits: int, window: int | None) -> None:
    """Of 32 splits most get no key: also those of the longest context, which has three tiles."""
    monkeypatch.setattr(back_end, "choose_splits", lambda **_: splits)
    shape = make_shape(LayerAttention(window=window), query_heads=2, kv_heads=1, head_dim=16)
    actual, expected = attend_both(shape, [(1, 150), (1, 1), (2, 30)])
    torch.testing.assert_close(actual, expected, atol=3e-6, rtol=0)


def test_a_chunk_is_cut_into_tiles() -> None:
    """64 rows of 8 query heads a key are 8 tokens; the second tile begins in the middle of a block."""
    actual, expected = attend_both(make_shape(query_heads=8, kv_heads=1, head_dim=32), [(21, 90)])
    torch.testing.assert_close(actual, expected, atol=3e-6, rtol=0)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("head_dim", "query_heads"), [(64, 2), (80, 6), (96, 3)])
def test_rotate_and_store(dtype: torch.dtype, head_dim: int, query_heads: int) -> None:
    """Queries rotate in place, keys and values are found where the slots say, and nothing else is touched."""
    shape = make_shape(head_dim=head_dim, query_heads=query_heads, kv_heads=query_heads // 3 or 1, cache_dtype=dtype)
    attention, reference = TritonAttention(shape), ReferenceAttention(shape)
    batch, blocks = make_batch([(5, 20), (1, 1)], shape.block_size)
    fill(attention, reference, blocks)
    generator = torch.Generator().manual_seed(5)
    heads = torch.randn(6, query_heads + 2 * shape.kv_heads, head_dim, generator=generator).to(dtype).to(DEVICE)
    angles = torch.randn(6, 1, head_dim, generator=generator).to(DEVICE)
    rotary = RotaryTable(angles.cos().to(dtype), angles.sin().to(dtype))
    rotated = rotate(heads[:, : -shape.kv_heads].float(), RotaryTable(*(part.float() for part in rotary))).to(dtype)
    reference.begin_step(batch)
    reference.store(0, rotated[:, query_heads:], heads[:, -shape.kv_heads :])

    qkv = heads.reshape(6, -1).clone()
    attention.begin_step(batch)
    attention.forward(0, qkv, rotary)
    in_place = qkv.view(heads.shape)[:, :query_heads]
    torch.testing.assert_close(in_place, rotated[:, :query_heads], atol=TOLERANCE[dtype], rtol=0)
    keys = attention._cache.keys[0].transpose(1, 2)
    torch.testing.assert_close(keys, reference._cache.keys[0], atol=TOLERANCE[dtype], rtol=0)
    assert torch.equal(attention._cache.values[0].transpose(1, 2), reference._cache.values[0])


def test_store_alone() -> None:
    """Rows that are views of something wider, which another model's modules hand over."""
    shape = make_shape()
    attention, reference = TritonAttention(shape), ReferenceAttention(shape)
    batch, blocks = make_batch([(3, 18)], shape.block_size)
    fill(attention, reference, blocks)
    rows = torch.randn(3, 7, 64, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    for one in (attention, reference):
        one.begin_step(batch)
        one.store(0, rows[:, 1:3], rows[:, 4:6])
    assert torch.equal(attention._cache.keys[0].transpose(1, 2), reference._cache.keys[0])
    assert torch.equal(attention._cache.values[0].transpose(1, 2), reference._cache.values[0])


@pytest.mark.filterwarnings("ignore:All-NaN slice")  # numpy's, in the interpreter
def test_what_is_not_finite_is_seen_and_stays_with_its_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(back_end, "choose_splits", lambda **_: 2)
    shape = make_shape()
    attention = TritonAttention(shape)
    batch, blocks = make_batch([(1, 90), (1, 70), (1, 3)], shape.block_size)
    attention.allocate(blocks)
    attention.begin_step(batch)
    query = make_query(shape, 3, torch.float32)
    damaged = torch.tensor(batch.block_tables[0])
    for cache in (attention._cache.keys, attention._cache.values):
        cache[0][damaged] = torch.nan
        result = attention.attend(0, query)
        assert result[0].isnan().all()
        assert result[1:].isfinite().all()
        attention.zero(damaged.tolist())
    assert attention.attend(0, query).isfinite().all()


def test_blocks_before_the_window_are_not_read() -> None:
    shape = make_shape(LayerAttention(window=4), block_size=4)
    attention = TritonAttention(shape)
    attention.allocate(4)
    attention._cache.keys[0][:2] = torch.nan
    attention._cache.values[0][:2] = torch.nan
    attention.begin_step(
        AttentionBatch(
            positions=torch.arange(11, 14, device=DEVICE),
            slots=torch.tensor([11, 12, 13], device=DEVICE),
            query_lengths=[3],
            context_lengths=[14],
            block_tables=[[0, 1, 2, 3]],
        )
    )
    assert attention.attend(0, make_query(shape, 3, torch.float32)).isfinite().all()


def test_padded_decodes_read_and_write_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A captured step has more rows than sequences: the rows are as without padding, and the cache is too."""
    monkeypatch.setattr(tiles, "LEAST_SPLIT_TOKENS", 64)
    shape = make_shape()
    attention, reference = TritonAttention(shape), ReferenceAttention(shape)
    attention._processors = 4
    batch, blocks = make_batch([(1, 70), (1, 5)], shape.block_size)
    fill(attention, reference, blocks)
    reference.begin_step(batch)
    rows = make_query(shape, 4, torch.float32)
    pair = rows[:, :2].contiguous()
    reference.store(0, pair[:2], pair[:2])
    attention.reserve(sequences=4, rows=4, longest_context=256)
    addresses = attention.buffer_addresses
    attention.begin_decodes(batch, rows=4, longest_context=256)
    assert attention._splits == 1  # 8 programs keep 4 processors busy
    attention._processors = 16
    attention.begin_decodes(batch, rows=4, longest_context=256)
    assert attention._splits == 4
    attention.store(0, pair, pair)
    torch.testing.assert_close(attention.attend(0, rows)[:2], reference.attend(0, rows[:2]), atol=3e-6, rtol=0)
    assert torch.equal(attention._cache.keys[0].transpose(1, 2), reference._cache.keys[0])
    assert attention.buffer_addresses == addresses
    many, _ = make_batch([(1, 200)] * 6, shape.block_size)
    attention.begin_step(many)
    assert attention.buffer_addresses != addresses, "buffers that had to grow say so"


def test_copied_blocks_are_read_like_the_first() -> None:
    shape = make_shape(layers=2)
    attention, reference = TritonAttention(shape), ReferenceAttention(shape)
    batch, blocks = make_batch([(1, 20)], shape.block_size)
    fill(attention, reference, blocks + 2)
    attention.copy_blocks(batch.block_tables[0], [blocks, blocks + 1])
    query = make_query(shape, 1, torch.float32)
    attention.begin_step(batch)
    expected = attention.attend(1, query)
    batch.block_tables[0] = [blocks, blocks + 1]
    attention.begin_step(batch)
    assert torch.equal(attention.attend(1, query), expected)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"cache_dtype": torch.int8}, "no cache in torch.int8; use bfloat16 or float32"),
        ({"head_dim": 320}, "an even head size up to 256, such as 128, not 320"),
        ({"head_dim": 63}, "not 63"),
        ({"query_heads": 129, "kv_heads": 1}, "128 query heads at most, not 129"),
        ({"device": torch.device("meta")}, "needs a usable NVIDIA GPU, which meta is not"),
    ],
)
def test_limits(options: dict[str, Any], sentence: str) -> None:
    shape = make_shape(**options)
    assert sentence in (TritonAttention.unsupported(shape) or "")
    with pytest.raises(StartupError, match=r"--attention-backend triton: .*use --attention-backend auto"):
        choose_attention("triton", shape, torch.float32)


def test_on_a_cpu_it_is_for_tests_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = make_shape(device=torch.device("cpu"))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert choose_attention("triton", shape, torch.float32) is TritonAttention
    assert choose_attention("auto", shape, torch.float32) is not TritonAttention
    monkeypatch.delenv("TRITON_INTERPRET")
    assert "only for tests" in (TritonAttention.unsupported(shape) or "")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert "install pagefleet[cuda]" in (TritonAttention.unsupported(shape) or "")
