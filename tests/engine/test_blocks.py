import pytest

from pagefleet.engine.blocks import BlockManager, IntegrityError, OutOfBlocks


def manager(blocks: int = 8, block_size: int = 4) -> BlockManager:
    return BlockManager(blocks_total=blocks, block_size=block_size)


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


def test_integrity_check_finds_a_lost_and_a_shared_block() -> None:
    blocks = manager()
    blocks.allocate("a", 4)
    lost = blocks.table("a").pop()
    with pytest.raises(IntegrityError, match="lost"):
        blocks.check_integrity()
    blocks.table("a").extend([lost, lost])
    with pytest.raises(IntegrityError, match="two places"):
        blocks.check_integrity()
