"""Full blocks by what they hold: a hash chain narrows the search, the tokens decide.

A chain begins at `SHA-256(SEED + cache_salt)`; each block's hash is `SHA-256(parent + tokens)`, the tokens as unsigned
32-bit numbers, little-endian. Seed and form are fixed, so a router in another process computes the same hashes.
A salt separates tenants: without the same one, nobody can tell by its speed whether another's prompt was cached.

Blocks stay here until they are given to someone else, also while no sequence holds them.
"""

import hashlib
import struct
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import msgspec

SEED = b"pagefleet-kv-1\0"


def root_hash(cache_salt: str | None) -> bytes:
    """Return the hash that a chain begins at."""
    return hashlib.sha256(SEED + (cache_salt or "").encode()).digest()


def block_hash(parent: bytes, token_ids: SequenceOf[int]) -> bytes:
    """Return the hash of a full block behind `parent`."""
    return hashlib.sha256(parent + struct.pack(f"<{len(token_ids)}I", *token_ids)).digest()


def extend_hashes(hashes: list[bytes], token_ids: list[int], block_size: int) -> None:
    """Append the hashes of full blocks that a chain does not have yet; `hashes[0]` is the root."""
    for end in range(len(hashes) * block_size, len(token_ids) + 1, block_size):
        hashes.append(block_hash(hashes[-1], token_ids[end - block_size : end]))


class BlockStored(msgspec.Struct, frozen=True, tag=True):
    """Say that a block can be hit from now on."""

    block_hash: bytes
    parent_hash: bytes
    """Of the block before it, or the root's."""
    token_ids: list[int]
    block_size: int


class BlockRemoved(msgspec.Struct, frozen=True, tag=True):
    """Say that a block can be hit no more."""

    block_hash: bytes


class AllCleared(msgspec.Struct, frozen=True, tag=True):
    """Say that no block can be hit."""


CacheEvent = BlockStored | BlockRemoved | AllCleared


@dataclass(slots=True)
class Residency:
    """Collect how long blocks stay, in seconds, until someone takes the lists."""

    lifetimes_s: list[float]
    """From being stored to being removed."""
    idle_times_s: list[float]
    """From the last use to being removed: short ones say that the cache is too small."""
    reuse_gaps_s: list[float]
    """From one use to the next hit."""


@dataclass(slots=True)
class _Entry:
    block_hash: bytes
    parent_hash: bytes
    token_ids: list[int]
    stored_s: float
    used_s: float


class PrefixCache:
    """Find blocks by content. Times are arguments, in seconds of any one clock."""

    def __init__(self, *, keeps_events: bool = False) -> None:
        self._entries: dict[int, _Entry] = {}
        self._blocks: dict[bytes, int] = {}
        self._keeps_events = keeps_events
        self._events: list[CacheEvent] = []
        self._residency = Residency([], [], [])

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, block: int) -> bool:
        return block in self._entries

    def find(self, block_hash: bytes, parent_hash: bytes, token_ids: list[int]) -> int | None:
        """Return the block that holds exactly these tokens behind exactly this parent; None when there is none."""
        block = self._blocks.get(block_hash)
        if block is None:
            return None
        entry = self._entries[block]
        return block if entry.token_ids == token_ids and entry.parent_hash == parent_hash else None

    def store(self, block: int, block_hash: bytes, parent_hash: bytes, token_ids: list[int], now_s: float) -> None:
        """Let a full block be found; does nothing when another block with this content is."""
        if block_hash in self._blocks:
            return
        self._entries[block] = _Entry(block_hash, parent_hash, token_ids, now_s, now_s)
        self._blocks[block_hash] = block
        if self._keeps_events:
            self._events.append(BlockStored(block_hash, parent_hash, token_ids, len(token_ids)))

    def remove(self, block: int, now_s: float) -> None:
        """Let a block be found no more; does nothing when it is not here."""
        entry = self._entries.pop(block, None)
        if entry is None:
            return
        del self._blocks[entry.block_hash]
        self._residency.lifetimes_s.append(now_s - entry.stored_s)
        self._residency.idle_times_s.append(now_s - entry.used_s)
        if self._keeps_events:
            self._events.append(BlockRemoved(entry.block_hash))

    def hit(self, block: int, now_s: float) -> None:
        """Record that a sequence took a block from here."""
        entry = self._entries[block]
        self._residency.reuse_gaps_s.append(now_s - entry.used_s)
        entry.used_s = now_s

    def touch(self, block: int, now_s: float) -> None:
        """Record that a block was in use until now; does nothing when it is not here."""
        if (entry := self._entries.get(block)) is not None:
            entry.used_s = now_s

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._blocks.clear()
        if self._keeps_events:
            self._events.append(AllCleared())

    def take_events(self) -> list[CacheEvent]:
        """Return what happened since the last call, in order."""
        taken, self._events = self._events, []
        return taken

    def snapshot(self) -> list[CacheEvent]:
        """Return the events that describe all that can be hit to someone who knows nothing, or something wrong."""
        stored = [
            BlockStored(entry.block_hash, entry.parent_hash, entry.token_ids, len(entry.token_ids))
            for entry in self._entries.values()
        ]
        return [AllCleared(), *stored]

    def take_residency(self) -> Residency:
        """Return what was observed since the last call."""
        taken, self._residency = self._residency, Residency([], [], [])
        return taken

    def check_integrity(self) -> str | None:
        """Return what is inconsistent, or None."""
        if {entry.block_hash: block for block, entry in self._entries.items()} != self._blocks:
            return "the map from hashes to blocks differs from the blocks' own hashes"
        for block, entry in self._entries.items():
            if block_hash(entry.parent_hash, entry.token_ids) != entry.block_hash:
                return f"block {block} is kept under a hash that is not its own"
        return None
