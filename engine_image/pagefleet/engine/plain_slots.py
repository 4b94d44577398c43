"""Where the blocks lie that a packed cache keeps in the compute dtype: a few slots, shared by all sequences.

Every block gets a slot when it is taken, because it is written token by token. When it is full, what it holds has been
packed and the slot is given back, unless the block begins a sequence (a sink). Sinks of finished sequences keep their
slots while the prefix cache finds them and nobody needs the slot.
"""

from collections import OrderedDict

import numpy as np
import numpy.typing as npt

NO_SLOT = -1


class PlainSlots:
    """Say which block has which slot; every operation is O(1)."""

    def __init__(self, *, slots_total: int, blocks_total: int, sink_blocks: int) -> None:
        self.slots_total = slots_total
        self.sink_blocks = sink_blocks
        self.slot_of: npt.NDArray[np.int32] = np.full(blocks_total, NO_SLOT, dtype=np.int32)
        """By block; back ends read it."""
        self._free = list(reversed(range(slots_total)))
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._tainted: set[int] = set()
        self._slots_to_zero: list[int] = []

    def has(self, block: int) -> bool:
        """Tell whether the block has a slot."""
        return bool(self.slot_of[block] != NO_SLOT)

    def oldest_idle_if_full(self) -> int | None:
        """Return the cached sink that must give up its slot before the next can be taken, or None."""
        return None if self._free else next(iter(self._idle))

    def take(self, block: int) -> None:
        """Give a slot to a block that is about to be written."""
        slot = self._free.pop()
        self.slot_of[block] = slot
        if slot in self._tainted:
            self._tainted.remove(slot)
            self._slots_to_zero.append(slot)

    def release(self, block: int, *, is_tainted: bool = False) -> None:
        """Take back the block's slot, if it has one; `is_tainted` when it holds values that are not finite."""
        slot = int(self.slot_of[block])
        if slot == NO_SLOT:
            return
        self.slot_of[block] = NO_SLOT
        self._idle.pop(block, None)
        self._free.append(slot)
        if is_tainted:
            self._tainted.add(slot)

    def set_idle(self, block: int) -> None:
        """Note that no sequence holds the block any more, though it can be found."""
        if self.has(block):
            self._idle[block] = None

    def set_active(self, block: int) -> None:
        """Note that a sequence holds the block again."""
        self._idle.pop(block, None)

    def release_idle(self) -> None:
        """Take back the slots of all sinks that no sequence holds."""
        for block in list(self._idle):
            self.release(block)

    def slots_of(self, source: int, target: int) -> tuple[int, int]:
        """Return two blocks' slots."""
        return int(self.slot_of[source]), int(self.slot_of[target])

    def take_slots_to_zero(self) -> list[int]:
        """Return the tainted slots that have been given out since the last call."""
        taken, self._slots_to_zero = self._slots_to_zero, []
        return taken

    def check_integrity(self, active: set[int], idle: set[int]) -> str | None:
        """Return what disagrees, given the blocks that sequences hold and those that only the cache does."""
        holders = np.flatnonzero(self.slot_of != NO_SLOT).tolist()
        slots = [int(self.slot_of[block]) for block in holders]
        if sorted(slots + self._free) != list(range(self.slots_total)):
            return "plain slots are lost or held twice"
        if not set(holders) <= active | idle:
            return f"blocks {sorted(set(holders) - active - idle)[:10]} hold plain slots but no values"
        if set(self._idle) != set(holders) & idle:
            return "the cached sinks are not those that are counted"
        return None
