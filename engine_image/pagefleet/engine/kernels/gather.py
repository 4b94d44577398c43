"""Paged attention in torch: gather the blocks of a group of sequences, then one scaled_dot_product_attention.

GQA is folded into the query length: the query heads of a group become extra rows, so keys and values are read once.
Decodes of similar context length share one call; a prefill chunk is cut into tiles so that its mask stays small and a
tile reads no key behind its last token. Where a layer has a sliding window, no block before the window is read. The
fused attention knows no soft cap: layers that have one take plain matrix products.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from pagefleet.engine.kernels.cache import TokenMajorCache
from pagefleet.engine.kernels.interface import AttentionBatch, AttentionShape, PagedAttention

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


@dataclass(frozen=True)
class _Span:
    """The tokens that one sequence's queries can see, in whole blocks."""

    first_block: int
    """Index into the sequence's table."""
    end_block: int

    @classmethod
    def of(cls, first_position: int, end_position: int, window: int | None, block_size: int) -> "_Span":
        """Cover what queries at positions first..end-1 see."""
        first_token = 0 if window is None else max(0, first_position + 1 - window)
        return cls(first_token // block_size, -(-end_position // block_size))

    @property
    def blocks(self) -> int:
        return self.end_block - self.first_block


class GatherAttention(PagedAttention):
    """Gather, then call torch's fused attention."""

    name = "gather-sdpa"
    _cache: TokenMajorCache
    _batch: AttentionBatch
    _groups: dict[int | None, list[_Group]]
    """Calls of each window that layers have."""

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__(shape)
        self._windows = {shape.attention_of(layer).window for layer in range(shape.layers)}

    @classmethod
    def unsupported(cls, shape: AttentionShape) -> str | None:
        """Return why torch cannot serve the shape, or None."""
        if shape.cache_dtype == torch.float8_e4m3fn:
            return "a KV cache in fp8 needs the Triton attention kernel, on a GPU; use bfloat16 or int8"
        return None

    def allocate(self, blocks_total: int, plain_slots: int = 0) -> None:  # noqa: ARG002 - nothing here is packed
        """Allocate the cache."""
        self._cache = TokenMajorCache(self.shape, blocks_total)

    def store(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Write the rows."""
        self._cache.store(layer, self._batch, key, value)

    def zero(self, blocks: list[int], plain_slots: Sequence[int] = ()) -> None:  # noqa: ARG002 - nothing here is packed
        """Clear the blocks."""
        self._cache.zero(blocks)

    def copy_blocks(self, sources: list[int], targets: list[int]) -> None:
        """Copy the blocks."""
        self._cache.copy_blocks(sources, targets)

    def begin_step(self, batch: AttentionBatch) -> None:
        """Group the step's queries into calls, with their block lists and masks: once for each window."""
        self._batch = batch
        longest = max(batch.context_lengths)
        # A window that holds the longest context hides nothing.
        effective = {window: None if window is None or window >= longest else window for window in self._windows}
        groups = {window: self._plan(window) for window in set(effective.values())}
        self._groups = {window: groups[effective[window]] for window in self._windows}

    def attend(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """Run the groups."""
        shape, options = self.shape, self.shape.attention_of(layer)
        scale = shape.scale_of(layer)
        result = torch.empty_like(query)
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        for group in self._groups[options.window]:
            rows = query[group.rows].view(
                group.sequences, group.query_tokens, shape.kv_heads, shape.group, shape.head_dim
            )
            folded = rows.transpose(1, 2).reshape(group.sequences, shape.kv_heads, -1, shape.head_dim)
            key, value = self._gather(keys, group, query.dtype), self._gather(values, group, query.dtype)
            if options.soft_cap is None:
                attended = scaled_dot_product_attention(folded, key, value, attn_mask=group.mask, scale=scale)
            else:
                attended = capped_attention(folded, key, value, group.mask, scale, options.soft_cap)
            unfolded = attended.view(
                group.sequences, shape.kv_heads, group.query_tokens, shape.group, shape.head_dim
            ).transpose(1, 2)
            result[group.rows] = unfolded.reshape(-1, shape.query_heads, shape.head_dim)
        return result

    def _plan(self, window: int | None) -> list[_Group]:
        groups: list[_Group] = []
        decodes: list[tuple[int, int]] = []  # (sequence, row)
        row = 0
        for index, length in enumerate(self._batch.query_lengths):
            if length == 1:
                decodes.append((index, row))
            else:
                groups.extend(self._prefill_tiles(index, row, window))
            row += length
        groups.extend(self._decode_groups(decodes, window))
        return groups

    def _gather(self, cache: torch.Tensor, group: _Group, dtype: torch.dtype) -> torch.Tensor:
        """Return [sequences, kv_heads, padded context, head_dim], a view of the gathered copy."""
        shape = self.shape
        tokens = cache.index_select(0, group.blocks)
        return tokens.view(group.sequences, -1, shape.kv_heads, shape.head_dim).transpose(1, 2).to(dtype)

    def _prefill_tiles(self, index: int, row: int, window: int | None) -> list[_Group]:
        batch, device, block_size = self._batch, self.shape.device, self.shape.block_size
        length, context = batch.query_lengths[index], batch.context_lengths[index]
        tiles = []
        for start in range(0, length, QUERY_TILE_TOKENS):
            tokens = min(QUERY_TILE_TOKENS, length - start)
            first_position = context - length + start
            span = _Span.of(first_position, first_position + tokens, window, block_size)
            positions = torch.arange(first_position, first_position + tokens, device=device)[:, None]
            keys = torch.arange(span.first_block * block_size, span.end_block * block_size, device=device)
            tiles.append(
                _Group(
                    rows=slice(row + start, row + start + tokens),
                    sequences=1,
                    query_tokens=tokens,
                    blocks=torch.tensor(batch.block_tables[index][span.first_block : span.end_block], device=device),
                    mask=visible_keys(keys, positions, window).repeat_interleave(self.shape.group, dim=0)[None, None],
                )
            )
        return tiles

    def _decode_groups(self, decodes: list[tuple[int, int]], window: int | None) -> list[_Group]:
        batch, block_size = self._batch, self.shape.block_size
        spans = {
            index: _Span.of(batch.context_lengths[index] - 1, batch.context_lengths[index], window, block_size)
            for index, _ in decodes
        }
        by_length = sorted(decodes, key=lambda decode: spans[decode[0]].blocks, reverse=True)
        groups: list[_Group] = []
        start = 0
        while start < len(by_length):
            longest = spans[by_length[start][0]].blocks
            end = start + 1
            while (
                end < len(by_length)
                and (end - start + 1) * longest * block_size <= GATHER_LIMIT_TOKENS
                and spans[by_length[end][0]].blocks >= PADDING_LIMIT * (longest - 1)
            ):
                end += 1
            members = by_length[start:end]
            groups.append(self._decode_group(members, [spans[index] for index, _ in members], window))
            start = end
        return groups

    def _decode_group(self, members: list[tuple[int, int]], spans: list[_Span], window: int | None) -> _Group:
        batch, device, block_size = self._batch, self.shape.device, self.shape.block_size
        blocks = spans[0].blocks  # of the longest
        # A short table is padded with its own last block: the mask hides the copies, and no sequence ever reads
        # another's values, which might not be finite.
        tables = []
        for (index, _), span in zip(members, spans, strict=True):
            table = batch.block_tables[index][span.first_block : span.end_block]
            tables.append(table + table[-1:] * (blocks - len(table)))
        positions = torch.tensor([batch.context_lengths[index] - 1 for index, _ in members], device=device)[:, None]
        first_keys = torch.tensor([span.first_block * block_size for span in spans], device=device)[:, None]
        visible = visible_keys(first_keys + torch.arange(blocks * block_size, device=device), positions, window)
        return _Group(
            rows=torch.tensor([row for _, row in members], device=device),
            sequences=len(members),
            query_tokens=1,
            blocks=torch.tensor(tables, device=device).view(-1),
            mask=visible[:, None, None, :].expand(-1, -1, self.shape.group, -1),
        )


def visible_keys(keys: torch.Tensor, positions: torch.Tensor, window: int | None) -> torch.Tensor:
    """Tell which key positions each query position sees."""
    visible = keys <= positions
    return visible if window is None else visible & (keys > positions - window)


def capped_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scale: float, soft_cap: float
) -> torch.Tensor:
    """Attend with capped scores; all are [sequences, kv_heads, rows or keys, head_dim], scores are float32."""
    scores = (query @ key.transpose(2, 3)).float().mul_(scale / soft_cap).tanh_().mul_(soft_cap)
    weights = torch.softmax(scores.masked_fill_(~mask, -torch.inf), dim=-1)
    return weights.to(value.dtype) @ value
