"""The C attention kernel: long contexts, the same bits whatever the batch, its layout and its limits."""

from typing import Any

import pytest
import torch

from pagefleet.engine.errors import StartupError
from pagefleet.engine.kernels.choose import choose_attention
from pagefleet.engine.kernels.cpu import library
from pagefleet.engine.kernels.cpu.attention import CpuAttention
from pagefleet.engine.kernels.gather import GatherAttention
from pagefleet.engine.kernels.interface import AttentionBatch, AttentionShape, LayerAttention, PagedAttention
from pagefleet.engine.kernels.reference import ReferenceAttention
from pagefleet.engine.layers.rotary import RotaryTable

TOKENS = 600
"""More than two chunks of 256 positions, after which the kernel rescales."""

DTYPES = [torch.float32, torch.bfloat16]

WINDOWS = [1, 15, 16, 17, 100, 255, 256, 257, 599, 5000]
"""Smaller than a unit, around the ends of units and chunks, larger than the context."""


def make_shape(**options: Any) -> AttentionShape:
    defaults: dict[str, Any] = {
        "layers": 1,
        "query_heads": 6,
        "kv_heads": 2,
        "head_dim": 64,
        "scale": 0.125,
        "block_size": 16,
        "cache_dtype": torch.float32,
        "device": torch.device("cpu"),
    }
    return AttentionShape(**{**defaults, **options})


def make_rows(shape: AttentionShape) -> torch.Tensor:
    width = (shape.query_heads + 2 * shape.kv_heads) * shape.head_dim
    return torch.randn(TOKENS, width, generator=torch.Generator().manual_seed(3)).to(shape.cache_dtype)


def rotary(positions: torch.Tensor, shape: AttentionShape) -> RotaryTable:
    angles = positions[:, None, None] * torch.linspace(1, 0.01, shape.head_dim)
    return RotaryTable(angles.cos().to(shape.cache_dtype), angles.sin().to(shape.cache_dtype))


def run_spans(attention: PagedAttention, rows: torch.Tensor, spans: list[tuple[int, int]]) -> torch.Tensor:
    """Compute one sequence span by span: [first position, end)."""
    shape = attention.shape
    table = list(range(TOKENS // shape.block_size + 1))[::-1]
    results = []
    for first, end in spans:
        positions = torch.arange(first, end)
        slots = torch.tensor(table)[positions // shape.block_size] * shape.block_size + positions % shape.block_size
        attention.begin_step(
            AttentionBatch(
                positions=positions,
                slots=slots,
                query_lengths=[end - first],
                context_lengths=[end],
                block_tables=[table],
            )
        )
        results.append(attention.forward(0, rows[first:end].clone(), rotary(positions, shape)))
    return torch.cat(results)


def fresh(back_end: type[PagedAttention], shape: AttentionShape) -> PagedAttention:
    attention = back_end(shape)
    attention.allocate(TOKENS // shape.block_size + 1)
    return attention


def spans_of(step: int) -> list[tuple[int, int]]:
    return [(first, min(first + step, TOKENS)) for first in range(0, TOKENS, step)]


@pytest.mark.parametrize("block_size", [16, 48])
def test_long_context(block_size: int) -> None:
    shape = make_shape(block_size=block_size)
    rows = make_rows(shape)
    actual = run_spans(fresh(CpuAttention, shape), rows, [(0, TOKENS)])
    expected = run_spans(fresh(GatherAttention, shape), rows, [(0, TOKENS)])
    assert torch.allclose(actual, expected, atol=2e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", WINDOWS)
def test_windows(window: int, dtype: torch.dtype) -> None:
    """In one piece and in chunks, which begin and end inside units, with and without a cap."""
    for soft_cap in (None, 3.0):
        layer = LayerAttention(window=window, soft_cap=soft_cap, scale=0.3)
        shape = make_shape(cache_dtype=dtype, query_heads=3, kv_heads=1, head_dim=32, layer_attention=(layer,))
        rows = make_rows(shape)
        expected = run_spans(fresh(ReferenceAttention, shape), rows, [(0, TOKENS)])
        whole = run_spans(fresh(CpuAttention, shape), rows, [(0, TOKENS)])
        assert torch.allclose(whole.float(), expected.float(), atol=4e-6 if dtype == torch.float32 else 0.03)
        for spans in ([(0, 590), *((position, position + 1) for position in range(590, TOKENS))], spans_of(37)):
            assert torch.equal(run_spans(fresh(CpuAttention, shape), rows, spans), whole)


@pytest.mark.parametrize("soft_cap", [None, 2.0, 50.0])
def test_scores_are_exact(soft_cap: float | None) -> None:
    """Of two keys one scores 0 and one what is asked, so the weight of the second tells what the score became."""
    scores = torch.cat([torch.linspace(-4, 4, 801), torch.logspace(-6, -1, 60)])
    shape = make_shape(
        query_heads=1, kv_heads=1, head_dim=16, scale=1.0, layer_attention=(LayerAttention(soft_cap=soft_cap),)
    )
    attention = CpuAttention(shape)
    attention.allocate(len(scores))
    for position in range(2):
        attention.begin_step(
            AttentionBatch(
                positions=torch.full((len(scores),), position),
                slots=torch.arange(len(scores)) * 16 + position,
                query_lengths=[1] * len(scores),
                context_lengths=[position + 1] * len(scores),
                block_tables=[[block] for block in range(len(scores))],
            )
        )
        key = torch.zeros(len(scores), 1, 16)
        key[:, 0, 0] = position
        attention.store(0, key, torch.full((len(scores), 1, 16), float(position)))
    query = torch.zeros(len(scores), 1, 16)
    query[:, 0, 0] = scores
    weights = attention.attend(0, query)[:, 0, 0].double()
    exact = scores.double() if soft_cap is None else soft_cap * torch.tanh(scores.double() / soft_cap)
    # The weight is off by up to 4 units in the last place of 1, and its slope over the score is weight * (1 - weight).
    assert ((weights - torch.sigmoid(exact)).abs() < 3e-7).all()
    small = scores.abs() < 0.05
    assert ((torch.logit(weights) - exact)[small].abs() < 1e-6).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("query_heads", "kv_heads", "head_dim"), [(6, 2, 64), (2, 2, 64), (5, 1, 64), (4, 2, 256)])
def test_chunks_give_the_same_bits(dtype: torch.dtype, query_heads: int, kv_heads: int, head_dim: int) -> None:
    shape = make_shape(cache_dtype=dtype, query_heads=query_heads, kv_heads=kv_heads, head_dim=head_dim)
    rows = make_rows(shape)
    whole = run_spans(fresh(CpuAttention, shape), rows, [(0, TOKENS)])
    decodes = [(0, 590), *((position, position + 1) for position in range(590, TOKENS))]
    for spans in (decodes, spans_of(37), spans_of(256)):
        assert torch.equal(run_spans(fresh(CpuAttention, shape), rows, spans), whole)


@pytest.mark.parametrize("layer", [LayerAttention(), LayerAttention(window=100, soft_cap=5.0)])
def test_a_batch_gives_the_same_bits(layer: LayerAttention) -> None:
    """The last token of sequences of many lengths, all in one step and each alone."""
    shape = make_shape(layer_attention=(layer,))
    lengths = [1, 15, 16, 17, 100, 255, 256, 257, 300]
    blocks = [-(-length // shape.block_size) for length in lengths]
    tables = [list(range(sum(blocks[:i]), sum(blocks[: i + 1]))) for i in range(len(blocks))]
    attention = CpuAttention(shape)
    attention.allocate(sum(blocks))
    for keys, values in zip(attention._cache.keys, attention._cache.values, strict=True):
        keys.normal_(generator=torch.Generator().manual_seed(1))
        values.normal_(generator=torch.Generator().manual_seed(2))

    def step(which: list[int]) -> torch.Tensor:
        positions = torch.tensor([lengths[i] - 1 for i in which])
        attention.begin_step(
            AttentionBatch(
                positions=positions,
                slots=torch.tensor([tables[i][-1] * 16 + (lengths[i] - 1) % 16 for i in which]),
                query_lengths=[1] * len(which),
                context_lengths=[lengths[i] for i in which],
                block_tables=[tables[i] for i in which],
            )
        )
        return attention.forward(0, make_rows(shape)[which], rotary(positions, shape))

    together = step(list(range(len(lengths))))
    assert all(torch.equal(step([i])[0], together[i]) for i in range(len(lengths)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_layout(dtype: torch.dtype) -> None:
    """What is stored is found where `token_major` says, and nothing else is touched."""
    shape = make_shape(cache_dtype=dtype, block_size=32)
    attention = CpuAttention(shape)
    attention.allocate(3)
    slots = torch.tensor([0, 1, 15, 16, 31, 33, 90])
    generator = torch.Generator().manual_seed(0)
    key, value = (torch.randn(len(slots), 2, 64, generator=generator).to(dtype) for _ in range(2))
    attention.begin_step(
        AttentionBatch(
            positions=slots,
            slots=slots,
            query_lengths=[len(slots)],
            context_lengths=[len(slots)],
            block_tables=[[0, 1, 2]],
        )
    )
    attention.store(0, key, value)
    for cache, rows in zip(attention._cache.token_major(0), (key, value), strict=True):
        expected = torch.zeros(96, 2, 64, dtype=dtype)
        expected[slots] = rows
        assert torch.equal(cache.reshape(96, 2, 64), expected)
    attention.zero([0, 2])
    keys, _ = attention._cache.token_major(0)
    assert {token for token, _, _ in keys.reshape(96, 2, 64).nonzero().tolist()} == {33}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"block_size": 8}, "multiple of 16, not 8"),
        ({"head_dim": 40}, "multiple of 16 up to 256, not 40"),
        ({"head_dim": 512}, "not 512"),
        ({"query_heads": 71, "kv_heads": 1}, "64 query heads at most, not 71"),
        ({"device": torch.device("cuda")}, "on the CPU, not on cuda"),
    ],
)
def test_limits(options: dict[str, Any], sentence: str) -> None:
    shape = make_shape(**options)
    assert sentence in (CpuAttention.unsupported(shape) or "")
    assert choose_attention("auto", shape, torch.float32) is GatherAttention
    with pytest.raises(StartupError, match=r"--attention-backend c: .*use --attention-backend auto"):
        choose_attention("c", shape, torch.float32)


def test_choice() -> None:
    shape = make_shape()
    assert choose_attention("auto", shape, torch.float32) is CpuAttention
    assert choose_attention("gather", shape, torch.float32) is GatherAttention
    assert choose_attention("auto", shape, torch.bfloat16) is GatherAttention  # the kernel does not convert
    with pytest.raises(StartupError, match="flash is unknown; use auto, c, triton or gather"):
        choose_attention("flash", shape, torch.float32)


def test_without_a_library_torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagefleet.engine.kernels.cpu.attention.load_library", lambda: None)
    assert choose_attention("auto", make_shape(), torch.float32) is GatherAttention


@pytest.mark.parametrize(
    ("names", "level"),
    [
        ((), None),
        (("avx2", "fma3", "f16c", "bmi2"), "avx2"),
        (("avx2", "fma3", "f16c", "bmi2", "avx512_f"), "avx2"),
    ],
)
def test_level(monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], level: str | None) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(names, True))
    assert library.cpu_level() == level
