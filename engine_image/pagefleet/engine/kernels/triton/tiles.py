"""How the kernels' work is cut: sizes of tiles, splits of long contexts, and the items of a step. Pure."""

import itertools
from dataclasses import dataclass

import numpy as np

MOST_SPLITS = 32

LEAST_SPLIT_TOKENS = 256
"""A shorter split costs more in its merge than it gains."""

ITEM_NUMBERS = 4


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
    """int32: [items, 4] (place of the block table in `numbers`, first row, tokens, first position), then tables."""
    decodes: int
    prefill_tiles: int


def cut_step(
    query_lengths: list[int],
    context_lengths: list[int],
    block_tables: list[list[int]],
    *,
    tile_tokens: int,
    least_decodes: int = 0,
) -> StepItems:
    """Cut the rows of a step into items: one for each decode, one for each `tile_tokens` rows of a longer chunk.

    Below `least_decodes` the decodes are padded with items that have no token.
    """
    decodes: list[tuple[int, int, int, int]] = []
    prefills: list[tuple[int, int, int, int]] = []
    row = table_start = 0
    for length, context, table in zip(query_lengths, context_lengths, block_tables, strict=True):
        if length == 1:
            decodes.append((table_start, row, 1, context - 1))
        else:
            for first in range(0, length, tile_tokens):
                tokens = min(tile_tokens, length - first)
                prefills.append((table_start, row + first, tokens, context - length + first))
        row += length
        table_start += len(table)
    decodes += [(0, 0, 0, 0)] * (least_decodes - len(decodes))
    items = len(decodes) + len(prefills)
    numbers = np.empty(ITEM_NUMBERS * items + table_start, dtype=np.int32)
    rows = numbers[: ITEM_NUMBERS * items].reshape(items, ITEM_NUMBERS)
    rows[:] = decodes + prefills
    rows[:, 0] += ITEM_NUMBERS * items
    numbers[ITEM_NUMBERS * items :] = np.fromiter(itertools.chain.from_iterable(block_tables), np.int32, table_start)
    return StepItems(numbers=numbers, decodes=len(decodes), prefill_tiles=len(prefills))
