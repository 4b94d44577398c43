"""Paged attention in torch: gather the blocks of a group of sequences, then one scaled_dot_product_attention.

GQA is folded into the query length: the query heads of a group become extra rows, so keys and values are read once.
Decodes of similar context length share one call; a prefill chunk is cut into tiles so that its mask stays small and a
tile reads no key behind its last token.
"""

from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from pagefleet.engine.kernels.cache import TokenMajorCache
from pagefleet.engine.kernels.interface import AttentionBatch, PagedAttention

QUERY_TILE_TOKENS = 128
"""Rows of a prefill chunk in one call: a tile of 128 rows and 3 heads over 8,192 tokens has a 13 MB mask."""

PADDING_LIMIT = 0.75
"""A decode joins a group only when its context is at least this share of the group's longest."""

GATHER_LIMIT_TOKENS = 8192
"""Padded tokens gathered in one call: 6 MB per tensor at 3 heads of 64 float32 values, so it stays in the cache."""


@dataclass(frozen=True)
class _Group:
    """Describe one call: `sequences` queries of `query_tokens` rows each over `blocks` blocks each."""

    rows: torch.Tensor | slice
    """Rows of the step, sequence by sequence."""
    sequences: int
    query_tokens: int
    blocks: torch.Tensor
    """[sequences * blocks per sequence] int64."""
    mask: torch.Tensor
    """[sequences, 1, query_tokens * group, padded context] bool: True where the key is visible."""


class GatherAttention(PagedAttention):
    """Gather, then call torch's fused attention."""

    name = "gather-sdpa"
    _cache: TokenMajorCache
    _batch: AttentionBatch
    _groups: list[_Group]

    def allocate(self, blocks_total: int) -> None:
        """Allocate the cache."""
        self._cache = TokenMajorCache(self.shape, blocks_total)

    def store(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Write the rows."""
        self._cache.store(layer, self._batch, key, value)

    def zero(self, blocks: list[int]) -> None:
        """Clear the blocks."""
        self._cache.zero(blocks)

    def copy_blocks(self, sources: list[int], targets: list[int]) -> None:
        """Copy the blocks."""
        self._cache.copy_blocks(sources, targets)

    def begin_step(self, batch: AttentionBatch) -> None:
        """Group the step's queries into calls, with their block lists and masks."""
        self._batch = batch
        self._groups = []
        decodes: list[tuple[int, int]] = []  # (sequence, row)
        row = 0
        for index, length in enumerate(batch.query_lengths):
            if length == 1:
                decodes.append((index, row))
            else:
                self._groups.extend(self._prefill_tiles(index, row))
            row += length
        self._groups.extend(self._decode_groups(decodes))

    def attend(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """Run the groups."""
        shape = self.shape
        result = torch.empty_like(query)
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        for group in self._groups:
            rows = query[group.rows].view(
                group.sequences, group.query_tokens, shape.kv_heads, shape.group, shape.head_dim
            )
            folded = rows.transpose(1, 2).reshape(group.sequences, shape.kv_heads, -1, shape.head_dim)
            attended = scaled_dot_product_attention(
                folded,
                self._gather(keys, group, query.dtype),
                self._gather(values, group, query.dtype),
                attn_mask=group.mask,
                scale=shape.scale,
            )
            unfolded = attended.view(
                group.sequences, shape.kv_heads, group.query_tokens, shape.group, shape.head_dim
            ).transpose(1, 2)
            result[group.rows] = unfolded.reshape(-1, shape.query_heads, shape.head_dim)
        return result

    def _gather(self, cache: torch.Tensor, group: _Group, dtype: torch.dtype) -> torch.Tensor:
        """Return [sequences, kv_heads, padded context, head_dim], a view of the gathered copy."""
        shape = self.shape
        tokens = cache.index_select(0, group.blocks)
        return tokens.view(group.sequences, -1, shape.kv_heads, shape.head_dim).transpose(1, 2).to(dtype)

    def _prefill_tiles(self, index: int, row: int) -> list[_Group]:
        batch, device = self._batch, self.shape.device
        length, context = batch.query_lengths[index], batch.context_lengths[index]
        tiles = []
        for start in range(0, length, QUERY_TILE_TOKENS):
            tokens = min(QUERY_TILE_TOKENS, length - start)
            first_position = context - length + start
            blocks = -(-(first_position + tokens) // self.shape.block_size)
            positions = torch.arange(first_position, first_position + tokens, device=device)
            visible = torch.arange(blocks * self.shape.block_size, device=device) <= positions[:, None]
            tiles.append(
                _Group(
                    rows=slice(row + start, row + start + tokens),
                    sequences=1,
                    query_tokens=tokens,
                    blocks=torch.tensor(batch.block_tables[index][:blocks], device=device),
                    mask=visible.repeat_interleave(self.shape.group, dim=0)[None, None],
                )
            )
        return tiles

    def _decode_groups(self, decodes: list[tuple[int, int]]) -> list[_Group]:
        batch, block_size = self._batch, self.shape.block_size
        by_length = sorted(decodes, key=lambda decode: batch.context_lengths[decode[0]], reverse=True)
        groups: list[_Group] = []
        start = 0
        while start < len(by_length):
            longest = -(-batch.context_lengths[by_length[start][0]] // block_size)
            end = start + 1
            while (
                end < len(by_length)
                and (end - start + 1) * longest * block_size <= GATHER_LIMIT_TOKENS
                and batch.context_lengths[by_length[end][0]] >= PADDING_LIMIT * (longest - 1) * block_size
            ):
                end += 1
            groups.append(self._decode_group(by_length[start:end], longest))
            start = end
        return groups

    def _decode_group(self, members: list[tuple[int, int]], blocks: int) -> _Group:
        batch, device = self._batch, self.shape.device
        # A short table is padded with its own last block: the mask hides the copies, and no sequence ever reads
        # another's values, which might not be finite.
        tables = [
            (batch.block_tables[index] + batch.block_tables[index][-1:] * blocks)[:blocks] for index, _ in members
        ]
        contexts = torch.tensor([batch.context_lengths[index] for index, _ in members], device=device)
        visible = torch.arange(blocks * self.shape.block_size, device=device) < contexts[:, None]
        return _Group(
            rows=torch.tensor([row for _, row in members], device=device),
            sequences=len(members),
            query_tokens=1,
            blocks=torch.tensor(tables, device=device).view(-1),
            mask=visible[:, None, None, :].expand(-1, -1, self.shape.group, -1),
        )
