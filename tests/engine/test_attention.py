"""Every attention back end against the plain reference, on the same cache contents."""

import psutil
import pytest
import torch

from pagefleet.engine.kernels import gather
from pagefleet.engine.kernels.cache import zeroed
from pagefleet.engine.kernels.cpu.attention import CpuAttention
from pagefleet.engine.kernels.gather import GatherAttention
from pagefleet.engine.kernels.interface import AttentionBatch, AttentionShape, LayerAttention, PagedAttention
from pagefleet.engine.kernels.reference import ReferenceAttention
from pagefleet.engine.layers.rotary import RotaryTable

BACK_ENDS = [GatherAttention, CpuAttention]
# back end, block size, (query heads, KV heads, head size)
CASES: list[tuple[type[PagedAttention], int, tuple[int, int, int]]] = [
    *((GatherAttention, size, heads) for size in (1, 8, 16, 32) for heads in ((4, 4, 8), (6, 2, 64), (4, 1, 16))),
    *((CpuAttention, size, heads) for size in (16, 32, 64) for heads in ((4, 4, 32), (6, 2, 64), (4, 1, 96))),
    *((CpuAttention, 16, heads) for heads in ((2, 2, 128), (7, 1, 256), (16, 1, 64))),
]
# (new tokens, context with them) of each sequence
STEPS = {
    "decodes": [(1, 1), (1, 5), (1, 16), (1, 17), (1, 40)],
    "prefill": [(9, 9), (33, 33)],
    "chunk": [(8, 40), (3, 19)],
    "mixed": [(1, 21), (17, 30), (1, 2), (5, 5), (1, 48)],
}


LAYERS = {
    "window": LayerAttention(window=12),
    "window of one": LayerAttention(window=1),
    "soft cap": LayerAttention(soft_cap=2.0),
    "all": LayerAttention(scale=0.7, window=17, soft_cap=5.0),
}


def make_shape(
    query_heads: int,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    dtype: torch.dtype,
    layer: LayerAttention | None = None,
) -> AttentionShape:
    """Make a shape of two layers; `layer` is how the second attends."""
    return AttentionShape(
        layers=2,
        query_heads=query_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        block_size=block_size,
        cache_dtype=dtype,
        device=torch.device("cpu"),
        layer_attention=() if layer is None else (LayerAttention(), layer),
    )


def make_batch(sequences: list[tuple[int, int]], block_size: int, seed: int = 0) -> tuple[AttentionBatch, int]:
    """Return a batch whose tables are scattered over the cache, and the number of blocks."""
    needed = [-(-context // block_size) for _, context in sequences]
    order = torch.randperm(sum(needed) + 3, generator=torch.Generator().manual_seed(seed)).tolist()
    tables = []
    for count in needed:
        tables.append([order.pop() for _ in range(count)])
    positions = [range(context - length, context) for length, context in sequences]
    slots = [
        table[position // block_size] * block_size + position % block_size
        for table, span in zip(tables, positions, strict=True)
        for position in span
    ]
    batch = AttentionBatch(
        positions=torch.tensor([position for span in positions for position in span]),
        slots=torch.tensor(slots),
        query_lengths=[length for length, _ in sequences],
        context_lengths=[context for _, context in sequences],
        block_tables=tables,
    )
    return batch, sum(needed) + 3


def attend(attention: PagedAttention, sequences: list[tuple[int, int]], dtype: torch.dtype) -> torch.Tensor:
    """Fill the whole context, then run the step's rows through layer 1."""
    shape = attention.shape
    generator = torch.Generator().manual_seed(1)
    width = shape.query_heads + 2 * shape.kv_heads
    history = [(context, context) for _, context in sequences]
    rows = torch.randn(sum(context for context, _ in history), width * shape.head_dim, generator=generator).to(dtype)
    filling, blocks = make_batch(history, shape.block_size)
    step, _ = make_batch(sequences, shape.block_size)
    angles = torch.arange(64)[:, None] * 0.1 + torch.arange(shape.head_dim)[None] * 0.01
    attention.allocate(blocks)

    def run(batch: AttentionBatch, qkv: torch.Tensor) -> torch.Tensor:
        attention.begin_step(batch)
        angle = angles[batch.positions][:, None]
        return attention.forward(1, qkv, RotaryTable(angle.cos().to(dtype), angle.sin().to(dtype)))

    run(filling, rows.clone())  # a back end may rotate in place
    last_rows: list[int] = []
    end = 0
    for length, context in sequences:
        end += context
        last_rows.extend(range(end - length, end))
    return run(step, rows[last_rows])


@pytest.mark.parametrize(("back_end", "block_size", "heads"), CASES)
@pytest.mark.parametrize("name", STEPS)
def test_float32(back_end: type[PagedAttention], name: str, block_size: int, heads: tuple[int, int, int]) -> None:
    shape = make_shape(*heads, block_size, torch.float32)
    actual = attend(back_end(shape), STEPS[name], torch.float32)
    assert torch.allclose(actual, attend(ReferenceAttention(shape), STEPS[name], torch.float32), atol=1e-5)


@pytest.mark.parametrize("back_end", BACK_ENDS)
@pytest.mark.parametrize("name", STEPS)
def test_bfloat16(back_end: type[PagedAttention], name: str) -> None:
    shape = make_shape(6, 2, 64, 16, torch.bfloat16)
    actual = attend(back_end(shape), STEPS[name], torch.bfloat16)
    expected = attend(ReferenceAttention(shape), STEPS[name], torch.bfloat16)
    assert torch.allclose(actual.float(), expected.float(), atol=0.03)


@pytest.mark.parametrize(("back_end", "block_size"), [(GatherAttention, 1), (GatherAttention, 16), (CpuAttention, 16)])
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("layer", LAYERS)
def test_layers_that_attend_otherwise(back_end: type[PagedAttention], name: str, block_size: int, layer: str) -> None:
    shape = make_shape(6, 2, 16, block_size, torch.float32, LAYERS[layer])
    plain = make_shape(6, 2, 16, block_size, torch.float32)
    expected = attend(ReferenceAttention(shape), STEPS[name], torch.float32)
    assert torch.allclose(attend(back_end(shape), STEPS[name], torch.float32), expected, atol=1e-5)
    assert not torch.allclose(attend(back_end(plain), STEPS[name], torch.float32), expected, atol=1e-2)


def first_tokens(count: int) -> AttentionBatch:
    """Return the step of one sequence's first tokens, in blocks 0 and 1."""
    return AttentionBatch(
        positions=torch.arange(count),
        slots=torch.arange(count),
        query_lengths=[count],
        context_lengths=[count],
        block_tables=[[0, 1]],
    )


def test_the_reference_sees_its_window_alone() -> None:
    """With equal scores attention is the mean of the values that are seen."""
    shape = make_shape(1, 1, 2, 4, torch.float32, LayerAttention(window=3))
    attention = ReferenceAttention(shape)
    attention.allocate(2)
    attention.begin_step(first_tokens(6))
    values = torch.arange(6.0)[:, None, None].expand(6, 1, 2)
    attention.store(1, torch.zeros(6, 1, 2), values)
    assert attention.attend(1, torch.ones(6, 1, 2))[:, 0, 0].tolist() == [0.0, 0.5, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(("back_end", "block_size"), [(GatherAttention, 4), (CpuAttention, 16)])
def test_blocks_before_the_window_are_not_read(back_end: type[PagedAttention], block_size: int) -> None:
    """Two blocks of values that are not finite lie before the window of three tokens behind them."""
    shape = make_shape(2, 1, 16, block_size, torch.float32, LayerAttention(window=4))
    attention = back_end(shape)
    attention.allocate(4)
    attention.begin_step(first_tokens(2 * block_size))
    attention.store(1, *(torch.full((2 * block_size, 1, 16), torch.nan) for _ in range(2)))
    positions = torch.arange(2 * block_size + 3, 2 * block_size + 6)
    attention.begin_step(
        AttentionBatch(
            positions=positions,
            slots=positions,
            query_lengths=[3],
            context_lengths=[2 * block_size + 6],
            block_tables=[[0, 1, 2, 3]],
        )
    )
    attention.store(1, torch.ones(3, 1, 16), torch.ones(3, 1, 16))
    assert attention.attend(1, torch.ones(3, 2, 16)).isfinite().all()


def test_long_prefills_are_cut_into_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "QUERY_TILE_TOKENS", 8)
    for layer in (None, LAYERS["all"]):
        shape = make_shape(6, 2, 16, 16, torch.float32, layer)
        actual = attend(GatherAttention(shape), STEPS["mixed"], torch.float32)
        assert torch.allclose(actual, attend(ReferenceAttention(shape), STEPS["mixed"], torch.float32), atol=1e-5)


def test_what_is_not_finite_stays_with_its_sequence() -> None:
    """One sequence's cache is all NaN; the other, shorter and padded beside it, must not notice."""
    shape = make_shape(4, 2, 8, 4, torch.float32)
    attention = GatherAttention(shape)
    attention.allocate(8)
    batch = AttentionBatch(
        positions=torch.tensor([11, 8]),
        slots=torch.tensor([11, 20]),
        query_lengths=[1, 1],
        context_lengths=[12, 9],
        block_tables=[[0, 1, 2], [3, 4, 5]],
    )
    attention.begin_step(batch)
    key = torch.ones(2, 2, 8)
    key[0] = torch.nan
    attention.store(0, key, key.clone())
    result = attention.attend(0, torch.ones(2, 4, 8))
    assert result[0].isnan().all()
    assert result[1].isfinite().all()
    attention.zero([0, 1, 2])
    assert attention.attend(0, torch.ones(2, 4, 8)).isfinite().all()


@pytest.mark.parametrize("back_end", [GatherAttention, ReferenceAttention])
def test_a_copied_block_is_read_like_the_first(back_end: type[PagedAttention]) -> None:
    attention = back_end(make_shape(4, 2, 8, 4, torch.float32))
    attention.allocate(8)
    tables = [[0, 1], [6, 7]]
    for table in tables:
        attention.begin_step(
            AttentionBatch(
                positions=torch.arange(6),
                slots=torch.arange(6),
                query_lengths=[6],
                context_lengths=[6],
                block_tables=[table],
            )
        )
        if table == [0, 1]:
            key = torch.randn(6, 2, 8, generator=torch.Generator().manual_seed(1))
            for layer in range(attention.shape.layers):
                attention.store(layer, key + layer, -key)
            attention.copy_blocks([0, 1], [6, 7])
            expected = [attention.attend(layer, torch.ones(6, 4, 8)) for layer in range(attention.shape.layers)]
    actual = [attention.attend(layer, torch.ones(6, 4, 8)) for layer in range(attention.shape.layers)]
    assert all(torch.equal(one, other) for one, other in zip(actual, expected, strict=True))
    assert not torch.equal(actual[0], torch.zeros(6, 4, 8))


def test_bytes_per_block() -> None:
    # keys and values x 2 layers x 3 heads x 64 numbers x 16 tokens x 4 bytes
    assert make_shape(9, 3, 64, 16, torch.float32).bytes_per_block == 2 * 2 * 3 * 64 * 16 * 4


def test_an_unused_cache_takes_no_memory() -> None:
    """A cache of a gibibyte costs its pages when they are written, not when it is made."""
    before = psutil.Process().memory_info().rss
    cache = zeroed((2**30,), torch.uint8, torch.device("cpu"))
    assert psutil.Process().memory_info().rss - before < 2**26
    assert not cache[:: 2**28].any()
