"""How the kernels' work is cut: sizes of tiles, splits of long contexts, and the items of a step. Pure."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

MOST_SPLITS = 32

LEAST_SPLIT_TOKENS = 256
"""A shorter split costs more in its merge than it gains."""

ITEM_NUMBERS = 4

FILL_NUMBERS = 2


@dataclass(frozen=True, kw_only=True)
class Tile:
    """The size of one program of the attention kernel."""

    rows: int
    """Query tokens times the query heads of a KV head, a power of two; tensor cores take 16 or more."""
    keys: int
    warps: int
    stages: int
    """Tiles of keys and values that are on their way at once."""


def next_power_of_2(number: int) -> int:
    """Return the smallest power of two that is not less."""
    return 1 << (number - 1).bit_length()


def padded_head_dim(head_dim: int) -> int:
    """Return the width of a tile's row: a power of two, at least what tensor cores sum over."""
    return max(16, next_power_of_2(head_dim))


def attention_tile(*, head_dim: int, itemsize: int, group: int, is_decode: bool) -> Tile:
    """Return the tile for rows of `itemsize` bytes a number; `compile` records what each takes of a device."""
    width = padded_head_dim(head_dim) * itemsize
    if itemsize == 4:  # no tensor core multiplies these exactly: each thread holds its products in registers
        rows, keys = 32, 32 if width <= 256 else 16
    else:
        rows, keys = 64, 64 if width <= 256 else 32
    if is_decode:
        return Tile(rows=max(16, next_power_of_2(group)), keys=keys, warps=4, stages=2)
    return Tile(rows=max(rows, next_power_of_2(group)), keys=keys, warps=4 if width <= 128 else 8, stages=2)


def packed_tile(tile: Tile, *, block_size: int, group: int, head_dim: int, itemsize: int) -> Tile:
    """Return the tile for a packed cache: neither its keys nor its tokens are of two blocks.

    Blocks are of 16 tokens or a larger power of two. Unpacking takes registers, so wide rows get smaller tiles.
    """
    most_rows, most_keys, warps = tile.rows, tile.keys, tile.warps
    if itemsize == 4:
        most_rows, most_keys, warps = 16, 16, 8
    elif padded_head_dim(head_dim) * itemsize > 256:
        most_rows = 32
    rows = min(most_rows, tile.rows, next_power_of_2(block_size * group))
    rows = max(16, next_power_of_2(group), rows)
    return replace(tile, rows=rows, keys=min(most_keys, block_size), warps=warps)


@dataclass(frozen=True, kw_only=True)
class LinearTile:
    """The size of one program of a product with 4-bit weights."""

    rows: int
    columns: int
    warps: int
    stages: int


def linear_tile(*, tokens: int) -> LinearTile:
    """Return the tile: decodes take few rows and narrow columns, so that more processors read the weight."""
    if tokens <= 16:
        return LinearTile(rows=16, columns=32, warps=4, stages=4)
    return LinearTile(rows=64, columns=64, warps=4, stages=3)


def choose_splits(*, programs: int, longest_context: int, processors: int) -> int:
    """Return among how many programs each context is split, so that few sequences keep all processors busy.

    `programs` is items times KV heads; two of them share a processor, which hides how long memory takes.
    """
    if programs >= processors:
        return 1
    wanted = -(-2 * processors // programs)
    return max(1, min(wanted, MOST_SPLITS, longest_context // LEAST_SPLIT_TOKENS))


@dataclass(frozen=True, kw_only=True)
class StepItems:
    """The items of one step, decodes first: what the kernels read, and how many of each kind there are."""

    numbers: np.ndarray
    """int32: [items, 4] (place of the block table in `numbers`, first row, tokens, first position), then [fills, 2]
    (plain slot and block, of a packed cache), then tables."""
    decodes: int
    prefill_tiles: int
    fills: int

    @property
    def first_fill(self) -> int:
        """Return the place of the fills in `numbers`."""
        return ITEM_NUMBERS * (self.decodes + self.prefill_tiles)


def cut_step(
    query_lengths: list[int],
    context_lengths: list[int],
    block_tables: list[list[int]],
    *,
    tile_tokens: int,
    least_decodes: int = 0,
    cut_at: int | None = None,
    fills: list[tuple[int, int]] | None = None,
) -> StepItems:
    """Cut the rows of a step into items: one for each decode, one for each `tile_tokens` rows of a longer chunk.

    Below `least_decodes` the decodes are padded with items that have no token. Where there are `fills`, no item crosses
    a position that is a multiple of `cut_at`, and they are padded too, with slot -1.
    """
    decodes: list[tuple[int, int, int, int]] = []
    prefills: list[tuple[int, int, int, int]] = []
    row = table_start = 0
    for length, context, table in zip(query_lengths, context_lengths, block_tables, strict=True):
        if length == 1:
            decodes.append((table_start, row, 1, context - 1))
        else:
            position = context - length
            for first, end in _spans(position, context, tile_tokens, cut_at):
                prefills.append((table_start, row + first - position, end - first, first))
        row += length
        table_start += len(table)
    decodes += [(0, 0, 0, 0)] * (least_decodes - len(decodes))
    pairs = [] if fills is None else [*fills, *[(-1, 0)] * (least_decodes - len(fills))]
    items = len(decodes) + len(prefills)
    tables = ITEM_NUMBERS * items + FILL_NUMBERS * len(pairs)
    numbers = np.empty(tables + table_start, dtype=np.int32)
    rows = numbers[: ITEM_NUMBERS * items].reshape(items, ITEM_NUMBERS)
    rows[:] = decodes + prefills
    rows[:, 0] += tables
    numbers[ITEM_NUMBERS * items : tables] = list(itertools.chain.from_iterable(pairs))
    numbers[tables:] = np.fromiter(itertools.chain.from_iterable(block_tables), np.int32, table_start)
    return StepItems(numbers=numbers, decodes=len(decodes), prefill_tiles=len(prefills), fills=len(pairs))


def _spans(first: int, end: int, most: int, cut_at: int | None) -> Iterator[tuple[int, int]]:
    """Cut positions into spans of `most` at most that cross no multiple of `cut_at`."""
    while first < end:
        border = end if cut_at is None else min(end, (first // cut_at + 1) * cut_at)
        span_end = min(border, first + most)
        yield first, span_end
        first = span_end
