"""Steps over a packed cache and what they must give, by definition: one query at a time, in float64."""

from dataclasses import replace

import torch

from pagefleet.engine.kernels.interface import AttentionBatch, AttentionShape, LayerAttention, PagedAttention
from pagefleet.engine.kernels.packed_format import PACKED_FORMATS, pack_keys, pack_values, rotation
from tests.engine.test_attention import make_shape


def packed_shape(
    name: str,
    *,
    query_heads: int = 6,
    kv_heads: int = 2,
    head_dim: int = 64,
    block_size: int = 64,
    dtype: torch.dtype = torch.float32,
    layer: LayerAttention | None = None,
) -> AttentionShape:
    """Make a shape of two layers; `layer` is how the second attends."""
    return replace(make_shape(query_heads, kv_heads, head_dim, block_size, dtype, layer), packed=PACKED_FORMATS[name])


class Tokens:
    """Random queries, keys (with one large channel, as Qwen's have) and values of a few sequences."""

    def __init__(self, shape: AttentionShape, lengths: list[int], seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.shape = shape
        self.lengths = lengths

        def draw(length: int, heads: int) -> torch.Tensor:
            return torch.randn(length, heads, shape.head_dim, generator=generator).to(shape.cache_dtype)

        self.queries = [draw(length, shape.query_heads) for length in lengths]
        self.keys = [draw(length, shape.kv_heads) for length in lengths]
        self.values = [draw(length, shape.kv_heads) for length in lengths]
        for keys in self.keys:
            keys[..., 1] += 20
        needed = [-(-length // shape.block_size) for length in lengths]
        order = torch.randperm(sum(needed) + 2, generator=generator).tolist()
        self.blocks_total = len(order)
        self.tables = [[order.pop() for _ in range(count)] for count in needed]
        self.plain_slots = torch.randperm(self.blocks_total, generator=generator).to(torch.int32)
        """Every block keeps its slot, scattered otherwise than the blocks."""

    def step(self, spans: list[tuple[int, int, int]]) -> tuple[AttentionBatch, list[torch.Tensor]]:
        """Return the batch of (sequence, first position, end) spans, and its queries, keys and values."""
        size = self.shape.block_size
        slots = [
            int(self.plain_slots[self.tables[index][position // size]]) * size + position % size
            for index, first, end in spans
            for position in range(first, end)
        ]
        batch = AttentionBatch(
            positions=torch.tensor([position for _, first, end in spans for position in range(first, end)]),
            slots=torch.tensor(slots),
            query_lengths=[end - first for _, first, end in spans],
            context_lengths=[end for _, _, end in spans],
            block_tables=[self.tables[index] for index, _, _ in spans],
            plain_slots=self.plain_slots,
        )
        rows = [
            torch.cat([kind[index][first:end] for index, first, end in spans])
            for kind in (self.queries, self.keys, self.values)
        ]
        return batch, rows


def run_steps(
    attention: PagedAttention, tokens: Tokens, steps: list[list[tuple[int, int, int]]], *, allocates: bool = True
) -> list[torch.Tensor]:
    """Run the steps through layer 1 and return the results of each sequence, [tokens, query_heads, head_dim].

    The cache is a new one if `allocates`.
    """
    if allocates:
        attention.allocate(tokens.blocks_total, tokens.blocks_total)
    results = [torch.full_like(queries, torch.nan) for queries in tokens.queries]
    for spans in steps:
        batch, (query, key, value) = tokens.step(spans)
        attention.begin_step(batch)
        attention.store(1, key, value)
        attended = attention.attend(1, query)
        row = 0
        for index, first, end in spans:
            results[index][first:end] = attended[row : row + end - first]
            row += end - first
    return results


def expected(tokens: Tokens) -> list[torch.Tensor]:
    """Return what all queries get by definition, float64."""
    return [_expected_of(tokens, index) for index in range(len(tokens.lengths))]


def _expected_of(tokens: Tokens, index: int) -> torch.Tensor:
    shape, packed = tokens.shape, tokens.shape.packed
    assert packed is not None
    size, sinks, options = shape.block_size, shape.sink_blocks * shape.block_size, shape.attention_of(1)
    turn = rotation(shape.head_dim)
    keys = tokens.keys[index]
    values = (tokens.values[index].float() @ turn).to(shape.cache_dtype)
    rounded_keys, rounded_values = keys.double(), values.double()
    for start in range(sinks, len(keys) - size + 1, size):
        block = slice(start, start + size)
        rounded_keys[block] = pack_keys(keys[block][None], packed.key_bits).plain()[0].double()
        rounded_values[block] = pack_values(values[block][None], packed.value_bits).plain(packed.value_bits)[0].double()
    result = torch.empty(*tokens.queries[index].shape, dtype=torch.float64)
    for position, query in enumerate(tokens.queries[index].double()):
        own = position // size * size
        first = 0 if options.window is None else max(0, position + 1 - options.window)
        seen_keys = torch.cat([rounded_keys[:own], keys[own : position + 1].double()])[first:]
        seen_values = torch.cat([rounded_values[:own], values[own : position + 1].double()])[first:]
        for head in range(shape.query_heads):
            scores = seen_keys[:, head // shape.group] @ query[head] * shape.scale_of(1)
            if options.soft_cap is not None:
                scores = options.soft_cap * torch.tanh(scores / options.soft_cap)
            result[position, head] = torch.softmax(scores, dim=0) @ seen_values[:, head // shape.group]
    return result @ turn.double()
