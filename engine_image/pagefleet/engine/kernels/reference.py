"""The plain twin of every attention kernel: one sequence, one position at a time, float32. Tests compare with it."""

from collections.abc import Sequence

import torch

from pagefleet.engine.kernels.cache import TokenMajorCache
from pagefleet.engine.kernels.interface import AttentionBatch, PagedAttention


class ReferenceAttention(PagedAttention):
    """Attend by the definition: softmax(cap(scale · q·k)) · v over the window that ends at the query's position."""

    name = "reference"
    _cache: TokenMajorCache
    _batch: AttentionBatch

    def allocate(self, blocks_total: int, plain_slots: int = 0) -> None:  # noqa: ARG002 - nothing here is packed
        """Allocate the cache."""
        self._cache = TokenMajorCache(self.shape, blocks_total)

    def begin_step(self, batch: AttentionBatch) -> None:
        """Keep the batch."""
        self._batch = batch

    def store(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Write the rows."""
        self._cache.store(layer, self._batch, key, value)

    def zero(self, blocks: list[int], plain_slots: Sequence[int] = ()) -> None:  # noqa: ARG002 - nothing here is packed
        """Clear the blocks."""
        self._cache.zero(blocks)

    def copy_blocks(self, sources: list[int], targets: list[int]) -> None:
        """Copy the blocks."""
        self._cache.copy_blocks(sources, targets)

    def attend(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """Attend row by row."""
        batch, shape, options = self._batch, self.shape, self.shape.attention_of(layer)
        result = torch.empty_like(query)
        row = 0
        for length, context, table in zip(batch.query_lengths, batch.context_lengths, batch.block_tables, strict=True):
            keys = self._tokens(self._cache.keys[layer], table, context)
            values = self._tokens(self._cache.values[layer], table, context)
            for position in range(context - length, context):
                first = 0 if options.window is None else max(0, position + 1 - options.window)
                for head in range(shape.query_heads):
                    visible_keys = keys[first : position + 1, head // shape.group]
                    visible_values = values[first : position + 1, head // shape.group]
                    scores = visible_keys @ query[row, head].float() * shape.scale_of(layer)
                    if options.soft_cap is not None:
                        scores = options.soft_cap * torch.tanh(scores / options.soft_cap)
                    result[row, head] = (torch.softmax(scores, dim=0) @ visible_values).to(result.dtype)
                row += 1
        return result

    def _tokens(self, cache: torch.Tensor, table: list[int], context: int) -> torch.Tensor:
        """Return [context, kv_heads, head_dim] in float32, one block after another."""
        return torch.cat([cache[block] for block in table])[:context].float()
