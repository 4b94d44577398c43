"""Paged KV memory as numbers: which block holds which tokens of which sequence (arXiv 2309.06180).

Token `i` of a sequence lives in block `table[i // block_size]`, slot `i % block_size`. A table grows by whole blocks,
on demand, so at most `block_size - 1` slots of a sequence are unused. Blocks are reference-counted:

- active: in at least one table. A full block may be in many, and so may a partial one until someone writes to it.
- cached: in no table, but its content can still be found. Given out only when no free block is left, least recently
  used first, and of one sequence the last block first, so that shared beginnings outlive their continuations.
- free: in no table, and its content cannot be found.
"""

from collections import Counter
from dataclasses import dataclass, field, replace

from pagefleet.engine.free_list import FreeList
from pagefleet.engine.plain_slots import PlainSlots
from pagefleet.engine.prefix_cache import PrefixCache, extend_hashes


class OutOfBlocks(Exception):
    """Report an allocation that the caller should have asked `can_allocate` about first."""


class IntegrityError(AssertionError):
    """Report blocks that are lost, shared by accident or counted twice: always a bug of ours."""


@dataclass(slots=True)
class _Table:
    blocks: list[int] = field(default_factory=list)
    tokens: int = 0
    """Tokens that the blocks hold, or will after the step that is being made."""
    stored_blocks: int = 0
    """Leading blocks that were offered to the cache."""
    closed_blocks: int = 0
    """Leading blocks that are full and computed, of which a packed cache reads no plain copy but sinks'."""


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy one block to another before the step's first write; in a packed cache these are plain slots."""

    source: int
    target: int


class BlockManager:
    """Own all blocks; every operation is O(1) per block that changes hands."""

    def __init__(
        self,
        *,
        blocks_total: int,
        block_size: int,
        has_prefix_cache: bool = True,
        keeps_events: bool = False,
        plain_slots: PlainSlots | None = None,
    ) -> None:
        """Begin with all blocks free; `plain_slots` are those of a packed cache."""
        self.blocks_total = blocks_total
        self.block_size = block_size
        self.has_prefix_cache = has_prefix_cache
        self.cache = PrefixCache(keeps_events=keeps_events)
        self.now_s = 0.0
        """The time of the step, for the cache's statistics; the scheduler sets it."""
        self._free = FreeList(blocks_total)
        self._cached = 0  # how many of `_free` the cache finds
        self._references = [0] * blocks_total
        self.plain_slots = plain_slots
        self._tables: dict[str, _Table] = {}
        self._tainted: set[int] = set()
        self._blocks_to_zero: list[int] = []

    # ---- what is there -----------------------------------------------------------------------------------------------

    @property
    def blocks_available(self) -> int:
        """Count the blocks that can be given out: free and cached."""
        return len(self._free)

    @property
    def blocks_free(self) -> int:
        """Count the blocks in no table whose content cannot be found."""
        return len(self._free) - self._cached

    @property
    def blocks_cached(self) -> int:
        """Count the blocks in no table whose content can be found."""
        return self._cached

    @property
    def blocks_active(self) -> int:
        """Count the blocks that live sequences hold, each once."""
        return self.blocks_total - len(self._free)

    def blocks_for(self, tokens: int) -> int:
        """Return how many blocks hold this many tokens."""
        return -(-tokens // self.block_size)

    def blocks_missing(self, sequence_id: str, tokens: int) -> int:
        """Return how many more blocks the sequence needs to hold this many tokens, a copy of a shared tail included."""
        table = self._tables.get(sequence_id)
        if table is None:
            return self.blocks_for(tokens)
        needs_copy = tokens > table.tokens and self._is_tail_shared(table)
        return self.blocks_for(tokens) - len(table.blocks) + needs_copy

    def can_allocate(self, sequence_id: str, tokens: int) -> bool:
        """Tell whether `allocate` with the same arguments would succeed."""
        return self.blocks_missing(sequence_id, tokens) <= len(self._free)

    def has_room_in_tail(self, sequence_id: str, tokens: int) -> bool:
        """Tell whether the sequence's own blocks hold so many tokens: the case of 15 in 16 decodes, answered fast."""
        table = self._tables[sequence_id]
        return 0 < tokens <= len(table.blocks) * self.block_size and self._references[table.blocks[-1]] == 1

    def table(self, sequence_id: str) -> list[int]:
        """Return the sequence's block table, not a copy; empty when it holds nothing."""
        table = self._tables.get(sequence_id)
        return table.blocks if table is not None else []

    def tokens(self, sequence_id: str) -> int:
        """Return how many tokens a running sequence's blocks hold."""
        return self._tables[sequence_id].tokens

    @property
    def tokens_active(self) -> int:
        """Count the tokens in active blocks, each once however many sequences share it."""
        unused = {
            table.blocks[-1]: len(table.blocks) * self.block_size - table.tokens
            for table in self._tables.values()
            if table.blocks
        }
        return self.blocks_active * self.block_size - sum(unused.values())

    def stored_blocks(self, sequence_id: str) -> int:
        """Return how many leading blocks of a running sequence others can find."""
        return self._tables[sequence_id].stored_blocks

    def holders(self) -> frozenset[str]:
        """Return the ids of the sequences that hold blocks."""
        return frozenset(self._tables)

    # ---- the life of a table -----------------------------------------------------------------------------------------

    def find_prefix(self, token_ids: list[int], hashes: list[bytes]) -> list[int]:
        """Return the blocks that hold the beginning of these tokens, changing nothing.

        `hashes` is the chain of all full blocks, its root first. The last token is never found: somebody must compute
        it, or there would be nothing to sample from.
        """
        found: list[int] = []
        if not self.has_prefix_cache:
            return found
        for index in range((len(token_ids) - 1) // self.block_size):
            tokens = token_ids[index * self.block_size : (index + 1) * self.block_size]
            block = self.cache.find(hashes[index + 1], hashes[index], tokens)
            if block is None:
                break
            found.append(block)
        return found

    def blocks_taken(self, found: list[int]) -> int:
        """Return how many of these blocks are available now and would not be after `adopt`."""
        return sum(self._references[block] == 0 for block in found)

    def adopt(self, sequence_id: str, found: list[int]) -> None:
        """Begin a sequence's table with blocks that `find_prefix` has just returned."""
        for block in found:
            if self._references[block] == 0:
                self._free.remove(block)
                self._cached -= 1
                if self.plain_slots is not None:
                    self.plain_slots.set_active(block)
            self._references[block] += 1
            self.cache.hit(block, self.now_s)
        count = len(found)
        self._tables[sequence_id] = _Table(list(found), count * self.block_size, count, count)

    def allocate(self, sequence_id: str, tokens: int) -> BlockCopy | None:
        """Grow the sequence's table to hold `tokens` tokens in all; raises OutOfBlocks and changes nothing.

        When its last block is partial and shared, it gets one of its own: the copy to make is returned.
        """
        held = self._tables.get(sequence_id)
        if held is not None and self.has_room_in_tail(sequence_id, tokens):
            held.tokens = tokens
            return None
        missing = self.blocks_missing(sequence_id, tokens)
        if missing > len(self._free):
            raise OutOfBlocks(f"{sequence_id} needs {missing} blocks, {len(self._free)} can be had")
        table = self._tables.setdefault(sequence_id, _Table())
        copy = None
        if tokens > table.tokens and self._is_tail_shared(table):
            source, target = table.blocks[-1], self._take()
            self._references[source] -= 1
            table.blocks[-1] = target
            # The slots of now: a preemption later in this step may give the source's to another block.
            copy = BlockCopy(*(self.plain_slots.slots_of(source, target) if self.plain_slots else (source, target)))
        for _ in range(self.blocks_for(tokens) - len(table.blocks)):
            table.blocks.append(self._take())
        table.tokens = tokens
        return copy

    def fork(self, sequence_id: str, child_id: str) -> None:
        """Give a new sequence the same blocks, the partial last one included."""
        table = self._tables[sequence_id]
        for block in table.blocks:
            self._references[block] += 1
        self._tables[child_id] = replace(table, blocks=list(table.blocks))

    def store_full(self, sequence_id: str, token_ids: list[int], hashes: list[bytes]) -> None:
        """Let others find the sequence's full blocks, whose values must be computed and finite; extends `hashes`."""
        table = self._tables[sequence_id]
        full = table.tokens // self.block_size
        if self.plain_slots is not None:
            for block in table.blocks[max(table.closed_blocks, self.plain_slots.sink_blocks) : full]:
                self.plain_slots.release(block)
            table.closed_blocks = full
        if not self.has_prefix_cache or full == table.stored_blocks:
            return
        if len(hashes) <= full:
            extend_hashes(hashes, token_ids[: full * self.block_size], self.block_size)
        for index in range(table.stored_blocks, full):
            tokens = token_ids[index * self.block_size : (index + 1) * self.block_size]
            self.cache.store(table.blocks[index], hashes[index + 1], hashes[index], tokens, self.now_s)
        table.stored_blocks = full

    def free(self, sequence_id: str) -> None:
        """Take back the sequence's blocks that nobody else holds; does nothing when it holds none."""
        table = self._tables.pop(sequence_id, None)
        if table is None:
            return
        for block in reversed(table.blocks):
            self._references[block] -= 1
            if self._references[block] > 0:
                continue
            if block in self.cache:
                self.cache.touch(block, self.now_s)
                self._cached += 1
                self._free.push_last(block)
                if self.plain_slots is not None:
                    self.plain_slots.set_idle(block)
            else:
                self._free.push_first(block)
                if self.plain_slots is not None:
                    self.plain_slots.release(block, is_tainted=block in self._tainted)

    def taint(self, sequence_id: str) -> None:
        """Mark the sequence's blocks as holding values that are not finite.

        Nobody finds them any more, and they are zeroed before anyone else writes to them.
        """
        for block in self._tables[sequence_id].blocks:
            self.cache.remove(block, self.now_s)
            self._tainted.add(block)

    def take_to_zero(self) -> tuple[list[int], list[int]]:
        """Return the tainted blocks, and the tainted plain slots, that have been given out since the last call."""
        taken, self._blocks_to_zero = self._blocks_to_zero, []
        return taken, [] if self.plain_slots is None else self.plain_slots.take_slots_to_zero()

    def clear_cache(self) -> None:
        """Let nothing be found that is computed up to now."""
        self.cache.clear()
        self._cached = 0
        if self.plain_slots is not None:
            self.plain_slots.release_idle()

    # ---- parts -------------------------------------------------------------------------------------------------------

    def _is_tail_shared(self, table: _Table) -> bool:
        return table.tokens % self.block_size != 0 and self._references[table.blocks[-1]] > 1

    def _take(self) -> int:
        block = self._free.pop_first()
        if block in self.cache:
            self.cache.remove(block, self.now_s)
            self._cached -= 1
        if block in self._tainted:
            self._tainted.discard(block)
            self._blocks_to_zero.append(block)
        self._references[block] = 1
        if self.plain_slots is not None:
            self._give_slot(self.plain_slots, block)
        return block

    def _give_slot(self, plain: PlainSlots, block: int) -> None:
        """Give a plain slot to a block that was just taken, where none is free that of the oldest cached sink."""
        plain.release(block)
        if (sink := plain.oldest_idle_if_full()) is not None:
            plain.release(sink)
            self.cache.remove(sink, self.now_s)  # without its beginning nobody can use what follows it either
            self._cached -= 1
        plain.take(block)

    def check_integrity(self) -> None:
        """Check references, tables, free list and cache against one another; raises IntegrityError."""
        held = Counter(block for table in self._tables.values() for block in table.blocks)
        for name, table in self._tables.items():
            if len(set(table.blocks)) != len(table.blocks):
                raise IntegrityError(f"{name} holds a block twice")
            if len(table.blocks) != self.blocks_for(table.tokens):
                raise IntegrityError(f"{name} holds {len(table.blocks)} blocks for {table.tokens} tokens")
        wrong = [block for block in range(self.blocks_total) if self._references[block] != held[block]]
        if wrong:
            raise IntegrityError(f"blocks {wrong[:10]} are in other numbers of tables than counted")
        free = list(self._free)
        if len(free) != len(self._free) or len(set(free)) != len(free):
            raise IntegrityError("the free list holds a block twice or miscounts")
        if set(free) != set(range(self.blocks_total)) - set(held):
            raise IntegrityError(f"blocks {sorted(set(free) & set(held))[:10]} are held and free, or some are lost")
        if self._cached != sum(block in self.cache for block in free):
            raise IntegrityError(f"{self._cached} cached blocks are counted, the free list holds another number")
        if (reason := self.cache.check_integrity()) is not None:
            raise IntegrityError(reason)
        if self.plain_slots is not None and (reason := self._check_slots(self.plain_slots, held)) is not None:
            raise IntegrityError(reason)
        for name, table in self._tables.items():
            for block in table.blocks[table.stored_blocks :]:
                if block in self.cache:
                    raise IntegrityError(f"block {block} of {name} can be found before it is known to be good")

    def _check_slots(self, plain: PlainSlots, held: Counter[int]) -> str | None:
        for name, table in self._tables.items():
            full = table.tokens // self.block_size
            for index in (*range(min(plain.sink_blocks, len(table.blocks))), *range(full, len(table.blocks))):
                if not plain.has(table.blocks[index]):
                    return f"block {index} of {name} has no plain slot"
        return plain.check_integrity(set(held), {block for block in self._free if block in self.cache})
