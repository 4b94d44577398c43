"""How the Triton kernels' work is cut."""

import pytest

from pagefleet.engine.kernels.triton.tiles import (
    MOST_SPLITS,
    attention_tile,
    choose_splits,
    cut_step,
    packed_tile,
    padded_head_dim,
)


@pytest.mark.parametrize(
    ("programs", "longest_context", "splits"),
    [
        (132, 10**6, 1),  # every processor has one
        (131, 10**6, 3),
        (8, 10**6, MOST_SPLITS),
        (8, 2048, 8),  # of 256 tokens each
        (8, 255, 1),
        (1, 1, 1),
    ],
)
def test_splits(programs: int, longest_context: int, splits: int) -> None:
    assert choose_splits(programs=programs, longest_context=longest_context, processors=132) == splits


def test_more_sequences_never_split_more() -> None:
    counts = [choose_splits(programs=count, longest_context=8192, processors=108) for count in range(1, 300)]
    assert counts == sorted(counts, reverse=True)


def test_items_of_a_mixed_step() -> None:
    step = cut_step([1, 5, 1], [20, 12, 3], [[7, 8], [1], [4]], tile_tokens=2, least_decodes=3)
    assert (step.decodes, step.prefill_tiles) == (3, 3)
    items = step.numbers[:24].reshape(6, 4).tolist()
    assert step.numbers[24:].tolist() == [7, 8, 1, 4]
    # place of the table, first row, tokens, position of the first
    assert items[:2] == [[24, 0, 1, 19], [27, 6, 1, 2]]
    assert items[2][2] == 0, "padding has no token"
    assert items[3:] == [[26, 1, 2, 7], [26, 3, 2, 9], [26, 5, 1, 11]]


@pytest.mark.parametrize("head_dim", [8, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("group", [1, 7, 71, 128])
@pytest.mark.parametrize("is_decode", [True, False])
def test_tiles(head_dim: int, itemsize: int, group: int, is_decode: bool) -> None:
    tile = attention_tile(head_dim=head_dim, itemsize=itemsize, group=group, is_decode=is_decode)
    sizes = (tile.rows, tile.keys, padded_head_dim(head_dim))
    assert all(size >= 16 and size & (size - 1) == 0 for size in sizes), "tensor cores take powers of two from 16 on"
    assert tile.rows >= group
    assert tile.keys * padded_head_dim(head_dim) * itemsize <= 2**14, "a tile of keys is 16 KiB at most"


def test_items_and_fills_of_a_packed_cache() -> None:
    """Six rows from position 6 on, of which 8 and 12 begin blocks; three decodes' worth of padding."""
    step = cut_step([6, 1], [12, 3], [[7, 8, 9], [4]], tile_tokens=3, least_decodes=3, cut_at=4, fills=[(5, 8), (6, 9)])
    assert (step.decodes, step.prefill_tiles, step.fills, step.first_fill) == (3, 3, 3, 24)
    assert step.numbers[24:].tolist() == [5, 8, 6, 9, -1, 0, 7, 8, 9, 4]
    items = step.numbers[:24].reshape(6, 4).tolist()
    assert items[0] == [33, 6, 1, 2]
    assert items[3:] == [[30, 0, 2, 6], [30, 2, 3, 8], [30, 5, 1, 11]]


@pytest.mark.parametrize("block_size", [16, 32, 64, 128])
@pytest.mark.parametrize("group", [1, 4, 71])
@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("head_dim", [64, 256])
def test_packed_tiles(block_size: int, group: int, itemsize: int, head_dim: int) -> None:
    plain = attention_tile(head_dim=head_dim, itemsize=itemsize, group=group, is_decode=False)
    tile = packed_tile(plain, block_size=block_size, group=group, head_dim=head_dim, itemsize=itemsize)
    assert block_size % tile.keys == 0
    assert tile.keys >= 16, "tensor cores take powers of two from 16 on"
    assert group <= tile.rows <= plain.rows
