"""Every back end with a packed cache against the definition, and against itself over other steps."""

import pytest
import torch

from pagefleet.engine.kernels.cpu.packed_attention import PackedCpuAttention
from pagefleet.engine.kernels.interface import LayerAttention, PagedAttention
from pagefleet.engine.kernels.packed_gather import PackedGatherAttention
from tests.engine.kernels.packed_steps import Tokens, expected, packed_shape, run_steps

BACK_ENDS: list[type[PagedAttention]] = [PackedGatherAttention, PackedCpuAttention]
LAYERS = {
    "whole context": LayerAttention(),
    "window": LayerAttention(window=70),
    "window within a block": LayerAttention(window=5),
    "soft cap": LayerAttention(soft_cap=5.0, scale=0.2),
}
LENGTHS = [201, 64, 65, 130, 1]


def whole(lengths: list[int]) -> list[list[tuple[int, int, int]]]:
    return [[(index, 0, length) for index, length in enumerate(lengths)]]


def in_chunks(lengths: list[int], size: int) -> list[list[tuple[int, int, int]]]:
    """Return steps of `size` tokens of each sequence, the last tokens one by one as decodes."""
    steps: list[list[tuple[int, int, int]]] = []
    for index, length in enumerate(lengths):
        prompt = max(1, length - 3)
        spans = [(first, min(first + size, prompt)) for first in range(0, prompt, size)]
        spans += [(position, position + 1) for position in range(prompt, length)]
        for number, (first, end) in enumerate(spans):
            if number == len(steps):
                steps.append([])
            steps[number].append((index, first, end))
    return steps


@pytest.mark.parametrize("back_end", BACK_ENDS)
@pytest.mark.parametrize(
    ("name", "block_size", "heads"),
    [
        ("int8", 16, (6, 2, 64)),
        ("int8", 64, (4, 1, 32)),
        ("int4", 32, (6, 2, 64)),
        ("int4", 64, (2, 2, 96)),
        ("k4v3", 64, (6, 2, 64)),
        ("k4v3", 128, (4, 4, 128)),
    ],
)
def test_equals_the_definition(
    back_end: type[PagedAttention], name: str, block_size: int, heads: tuple[int, int, int]
) -> None:
    query_heads, kv_heads, head_dim = heads
    shape = packed_shape(name, query_heads=query_heads, kv_heads=kv_heads, head_dim=head_dim, block_size=block_size)
    tokens = Tokens(shape, LENGTHS)
    results = run_steps(back_end(shape), tokens, in_chunks(LENGTHS, 50))
    for result, wanted in zip(results, expected(tokens), strict=True):
        # A number at the border of two codes may fall to either side: a step of one token's values, hardly visible.
        assert torch.allclose(result.double(), wanted, atol=2e-3)
        assert (result.double() - wanted).abs().mean() < 2e-5


@pytest.mark.parametrize("back_end", BACK_ENDS)
@pytest.mark.parametrize("layer", LAYERS)
def test_layers_that_attend_otherwise(back_end: type[PagedAttention], layer: str) -> None:
    shape = packed_shape("int4", layer=LAYERS[layer])
    tokens = Tokens(shape, LENGTHS)
    for result, wanted in zip(run_steps(back_end(shape), tokens, whole(LENGTHS)), expected(tokens), strict=True):
        assert torch.allclose(result.double(), wanted, atol=2e-3)


@pytest.mark.parametrize("back_end", BACK_ENDS)
@pytest.mark.parametrize("name", ["int8", "int4", "k4v3"])
def test_chunks_see_what_a_whole_prompt_sees(back_end: type[PagedAttention], name: str) -> None:
    shape = packed_shape(name)
    tokens = Tokens(shape, LENGTHS)
    at_once = run_steps(back_end(shape), tokens, whole(LENGTHS))
    for size in (7, 64, 100):
        for result, wanted in zip(run_steps(back_end(shape), tokens, in_chunks(LENGTHS, size)), at_once, strict=True):
            assert torch.allclose(result, wanted, atol=1e-5)


@pytest.mark.parametrize("back_end", BACK_ENDS)
def test_bfloat16(back_end: type[PagedAttention]) -> None:
    shape = packed_shape("int8", dtype=torch.bfloat16)
    tokens = Tokens(shape, LENGTHS)
    for result, wanted in zip(
        run_steps(back_end(shape), tokens, in_chunks(LENGTHS, 50)), expected(tokens), strict=True
    ):
        assert torch.allclose(result.double(), wanted, atol=0.03)


@pytest.mark.parametrize("back_end", BACK_ENDS)
def test_zeroed_blocks_and_slots_let_nothing_through(back_end: type[PagedAttention]) -> None:
    shape = packed_shape("int4")
    tokens, other = Tokens(shape, [200]), Tokens(shape, [200], seed=1)
    other.tables, other.plain_slots = tokens.tables, tokens.plain_slots
    attention = back_end(shape)
    broken = Tokens(shape, [200])
    broken.keys[0][:], broken.values[0][:] = torch.nan, torch.inf
    run_steps(attention, broken, whole([200]))
    everything = list(range(tokens.blocks_total))
    attention.zero(everything, everything)
    results = run_steps(attention, other, whole([200]), allocates=False)
    assert torch.allclose(results[0].double(), expected(other)[0], atol=2e-3)
