import hashlib

from pagefleet.engine.prefix_cache import (
    AllCleared,
    BlockRemoved,
    BlockStored,
    PrefixCache,
    block_hash,
    extend_hashes,
    root_hash,
)

TOKENS = [1, 2, 3, 70000]


def chain(token_ids: list[int], salt: str | None = None, block_size: int = 4) -> list[bytes]:
    hashes = [root_hash(salt)]
    extend_hashes(hashes, token_ids, block_size)
    return hashes


def test_the_hash_is_what_the_documentation_says() -> None:
    """A router in another process, or another language, must get the same."""
    root = hashlib.sha256(b"pagefleet-kv-1\0").digest()
    written = bytes([1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0x70, 0x11, 1, 0])
    assert chain(TOKENS) == [root, hashlib.sha256(root + written).digest()]
    assert root_hash("tenant") == hashlib.sha256(b"pagefleet-kv-1\0tenant").digest()


def test_a_chain_grows_by_full_blocks_and_hashes_each_once() -> None:
    hashes = chain([*TOKENS, 5, 6, 7])
    assert len(hashes) == 2
    first = hashes[1]
    extend_hashes(hashes, [*TOKENS, 5, 6, 7, 8], 4)
    assert len(hashes) == 3
    assert hashes[1] is first
    assert hashes[2] == block_hash(first, [5, 6, 7, 8])


def test_order_place_and_salt_make_other_hashes() -> None:
    assert (
        len({hashes[-1] for hashes in (chain(TOKENS), chain(TOKENS[::-1]), chain(TOKENS, "a"), chain(TOKENS * 2))}) == 4
    )


def test_the_hash_narrows_and_the_tokens_decide() -> None:
    """Two contents under one hash: only the one that is really there is found."""
    cache = PrefixCache()
    root = root_hash(None)
    cache.store(3, b"same", root, TOKENS, 0.0)
    assert cache.find(b"same", root, TOKENS) == 3
    assert cache.find(b"same", root, [9, 9, 9, 9]) is None
    assert cache.find(b"same", root_hash("other tenant"), TOKENS) is None
    assert cache.find(b"other", root, TOKENS) is None


def test_the_first_block_with_a_content_is_the_one_that_is_found() -> None:
    cache = PrefixCache()
    root, first = chain(TOKENS)
    cache.store(3, first, root, TOKENS, 0.0)
    cache.store(4, first, root, TOKENS, 0.0)
    assert 4 not in cache
    cache.remove(4, 1.0)
    assert cache.find(first, root, TOKENS) == 3
    assert cache.check_integrity() is None


def test_events_tell_everything_in_order() -> None:
    cache = PrefixCache(keeps_events=True)
    root, first = chain(TOKENS)
    cache.store(3, first, root, TOKENS, 0.0)
    cache.store(4, first, root, TOKENS, 0.0)
    cache.remove(3, 1.0)
    cache.remove(3, 1.0)
    cache.clear()
    assert cache.take_events() == [BlockStored(first, root, TOKENS, len(TOKENS)), BlockRemoved(first), AllCleared()]
    assert cache.take_events() == []


def test_residency() -> None:
    cache = PrefixCache()
    root, first = chain(TOKENS)
    cache.store(3, first, root, TOKENS, 10.0)
    cache.hit(3, 12.0)
    cache.touch(3, 15.0)
    cache.hit(3, 16.0)
    cache.remove(3, 20.0)
    residency = cache.take_residency()
    assert residency.reuse_gaps_s == [2.0, 1.0]
    assert residency.lifetimes_s == [10.0]
    assert residency.idle_times_s == [4.0]
    assert cache.take_residency().lifetimes_s == []


def test_integrity_check_finds_a_content_under_a_wrong_hash() -> None:
    cache = PrefixCache()
    cache.store(3, b"wrong", root_hash(None), TOKENS, 0.0)
    assert cache.check_integrity() == "block 3 is kept under a hash that is not its own"
