from typing import Any

import pytest

from pagefleet.engine.blocks import BlockCopy, BlockManager, IntegrityError, OutOfBlocks
from pagefleet.engine.prefix_cache import block_hash, extend_hashes, root_hash

GOOD_ENTRY = (block_hash(root_hash(None), [1, 2, 3, 4]), root_hash(None), [1, 2, 3, 4])


def manager(blocks: int = 8, block_size: int = 4, **options: Any) -> BlockManager:
    return BlockManager(blocks_total=blocks, block_size=block_size, **options)


def test_tables_grow_by_whole_blocks_on_demand() -> None:
    blocks = manager()
    for tokens, expected in ((1, 1), (4, 1), (5, 2), (8, 2), (9, 3)):
        blocks.allocate("a", tokens)
        assert len(blocks.table("a")) == expected
    assert blocks.blocks_active == 3
    assert blocks.blocks_free == 5


def test_allocate_beyond_the_end_changes_nothing() -> None:
    blocks = manager(blocks=2)
    blocks.allocate("a", 4)
    assert not blocks.can_allocate("b", 8)
    with pytest.raises(OutOfBlocks):
        blocks.allocate("b", 8)
    assert blocks.table("b") == []
    assert blocks.blocks_free == 1
    blocks.check_integrity()


def test_free_returns_everything_and_may_be_repeated() -> None:
    blocks = manager()
    blocks.allocate("a", 20)
    blocks.free("a")
    blocks.free("a")
    assert blocks.blocks_free == 8
    blocks.check_integrity()


def test_freed_blocks_are_used_again_in_their_order() -> None:
    blocks = manager()
    blocks.allocate("a", 12)
    before = list(blocks.table("a"))
    blocks.free("a")
    blocks.allocate("b", 12)
    assert blocks.table("b") == before


def test_no_block_is_in_two_tables() -> None:
    blocks = manager()
    blocks.allocate("a", 12)
    blocks.allocate("b", 12)
    assert not set(blocks.table("a")) & set(blocks.table("b"))


def fill(blocks: BlockManager, name: str, token_ids: list[int], salt: str | None = None) -> list[int]:
    """Run a sequence as far as these tokens and return the blocks that it found."""
    hashes = chain_of(blocks, token_ids, salt)
    found = blocks.find_prefix(token_ids, hashes)
    blocks.adopt(name, found)
    blocks.allocate(name, len(token_ids))
    blocks.store_full(name, token_ids, hashes)
    blocks.check_integrity()
    return found


def chain_of(blocks: BlockManager, token_ids: list[int], salt: str | None = None) -> list[bytes]:
    hashes = [root_hash(salt)]
    extend_hashes(hashes, token_ids, blocks.block_size)
    return hashes


def test_full_blocks_are_shared_while_they_are_held() -> None:
    blocks = manager()
    fill(blocks, "a", list(range(10)))
    assert fill(blocks, "b", list(range(10))) == blocks.table("a")[:2]
    assert blocks.blocks_active == 4
    assert blocks.tokens_active == 12
    blocks.free("a")
    assert (blocks.blocks_active, blocks.blocks_cached, blocks.blocks_free) == (3, 0, 5)
    blocks.free("b")
    assert (blocks.blocks_active, blocks.blocks_cached, blocks.blocks_free) == (0, 2, 6)
    blocks.check_integrity()


@pytest.mark.parametrize(("tokens", "shared"), [(3, 0), (4, 0), (5, 1), (8, 1), (9, 2), (11, 2)])
def test_a_hit_leaves_at_least_the_last_token(tokens: int, shared: int) -> None:
    blocks = manager()
    fill(blocks, "a", list(range(tokens)))
    blocks.free("a")
    assert len(blocks.find_prefix(list(range(tokens)), chain_of(blocks, list(range(tokens))))) == shared


def test_looking_changes_nothing() -> None:
    blocks = manager(keeps_events=True)
    fill(blocks, "a", list(range(9)))
    blocks.free("a")
    before = (blocks.blocks_active, blocks.blocks_cached, blocks.cache.take_events())
    blocks.find_prefix(list(range(9)), chain_of(blocks, list(range(9))))
    assert (blocks.blocks_active, blocks.blocks_cached) == before[:2]
    assert blocks.cache.take_events() == []
    assert blocks.cache.take_residency().reuse_gaps_s == []
    blocks.check_integrity()


def test_salts_do_not_share() -> None:
    blocks = manager()
    fill(blocks, "a", list(range(9)), "one")
    assert fill(blocks, "b", list(range(9)), "two") == []
    assert len(fill(blocks, "c", list(range(9)), "one")) == 2


def test_the_last_blocks_of_the_least_recently_used_go_first() -> None:
    blocks = manager(blocks=6)
    root = list(range(4))
    fill(blocks, "old", [*root, 10, 11, 12, 13])
    fill(blocks, "new", [*root, 20, 21, 22, 23])
    blocks.free("old")
    blocks.free("new")
    assert (blocks.blocks_cached, blocks.blocks_free) == (3, 3)

    def cached(*token_ids: int) -> int:
        ids = [*token_ids, 99]
        return len(blocks.find_prefix(ids, chain_of(blocks, ids)))

    blocks.allocate("other", 16)  # the three free blocks and one cached
    assert cached(*root, 10, 11, 12, 13) == 1
    assert cached(*root, 20, 21, 22, 23) == 2
    blocks.allocate("other", 20)
    assert cached(*root, 20, 21, 22, 23) == 1
    blocks.allocate("other", 24)
    assert cached(*root) == 0
    assert blocks.blocks_cached == 0
    blocks.check_integrity()


def test_a_hit_makes_a_block_young_again() -> None:
    blocks = manager(blocks=2)
    for first in (0, 10):
        fill(blocks, "a", list(range(first, first + 4)))
        blocks.free("a")
    blocks.adopt("hit", blocks.find_prefix([0, 1, 2, 3, 4], chain_of(blocks, [0, 1, 2, 3, 4])))
    blocks.free("hit")
    blocks.allocate("other", 4)
    assert blocks.find_prefix([0, 1, 2, 3, 4], chain_of(blocks, [0, 1, 2, 3, 4]))
    assert not blocks.find_prefix([10, 11, 12, 13, 4], chain_of(blocks, [10, 11, 12, 13, 4]))


def test_without_a_cache_nothing_is_found() -> None:
    blocks = manager(has_prefix_cache=False)
    fill(blocks, "a", list(range(9)))
    assert fill(blocks, "b", list(range(9))) == []
    assert len(blocks.cache) == 0


def test_a_fork_copies_its_partial_tail_when_someone_writes() -> None:
    blocks = manager()
    blocks.allocate("a", 6)
    blocks.fork("a", "b")
    assert blocks.table("b") == blocks.table("a")
    assert blocks.blocks_active == 2
    assert blocks.tokens_active == 6
    tail = blocks.table("a")[-1]
    assert blocks.blocks_missing("b", 7) == 1
    copy = blocks.allocate("b", 7)
    assert copy == BlockCopy(source=tail, target=blocks.table("b")[-1])
    assert blocks.allocate("a", 7) is None, "the last holder writes where it is"
    assert blocks.table("a")[0] == blocks.table("b")[0]
    assert blocks.table("a")[1] != blocks.table("b")[1]
    blocks.free("a")
    assert blocks.blocks_active == 2
    blocks.check_integrity()


def test_a_fork_at_a_block_boundary_copies_nothing() -> None:
    blocks = manager()
    blocks.allocate("a", 8)
    blocks.fork("a", "b")
    assert blocks.allocate("a", 9) is None
    assert blocks.allocate("b", 9) is None
    assert blocks.blocks_active == 4
    blocks.check_integrity()


def test_a_copy_needs_a_block() -> None:
    blocks = manager(blocks=2)
    blocks.allocate("a", 6)
    blocks.fork("a", "b")
    assert not blocks.can_allocate("b", 7)
    with pytest.raises(OutOfBlocks):
        blocks.allocate("b", 7)
    blocks.check_integrity()


def test_tainted_blocks_are_never_found_and_zeroed_before_use() -> None:
    blocks = manager(blocks=3)
    fill(blocks, "good", list(range(9)))
    blocks.fork("good", "bad")
    held = list(blocks.table("bad"))
    blocks.taint("bad")
    blocks.free("bad")
    blocks.free("good")
    assert (blocks.blocks_cached, blocks.blocks_free) == (0, 3)
    assert blocks.find_prefix(list(range(9)), chain_of(blocks, list(range(9)))) == []
    blocks.allocate("next", 8)
    zeroed = blocks.take_to_zero()[0]
    assert zeroed == blocks.table("next")
    blocks.allocate("next", 12)
    assert blocks.take_to_zero()[0] == blocks.table("next")[2:]
    blocks.free("next")
    blocks.allocate("later", 12)
    assert blocks.take_to_zero()[0] == []
    assert sorted(held) == sorted(blocks.table("later"))


def test_clearing_the_cache_leaves_holders_alone() -> None:
    blocks = manager()
    fill(blocks, "a", list(range(8)))
    blocks.free("a")
    fill(blocks, "b", list(range(20, 28)))
    blocks.clear_cache()
    assert (blocks.blocks_active, blocks.blocks_cached, blocks.blocks_free) == (2, 0, 6)
    blocks.check_integrity()
    assert fill(blocks, "c", list(range(20, 29))) == []
    blocks.free("b")
    blocks.check_integrity()


def test_integrity_check_finds_lost_shared_and_miscounted_blocks() -> None:
    for damage, sentence in (
        (lambda blocks: blocks.table("a").pop(), "0 blocks for 4 tokens"),
        (lambda blocks: blocks.table("a").append(blocks.table("a")[0]), "holds a block twice"),
        (lambda blocks: blocks.table("a").__setitem__(0, blocks.table("b")[0]), "in other numbers of tables"),
        (lambda blocks: blocks._free.remove(7), "some are lost"),
        (lambda blocks: setattr(blocks, "_cached", 1), "1 cached blocks are counted"),
        (lambda blocks: blocks.cache.store(blocks.table("a")[0], *GOOD_ENTRY, 0.0), "before it is known to be good"),
    ):
        blocks = manager()
        blocks.allocate("a", 4)
        blocks.allocate("b", 4)
        blocks.check_integrity()
        damage(blocks)
        with pytest.raises(IntegrityError, match=sentence):
            blocks.check_integrity()
