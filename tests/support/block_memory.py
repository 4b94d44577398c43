"""What the KV cache would hold, without a model: every slot remembers the tokens that its values depend on."""

from collections.abc import Callable, Collection

from pagefleet.engine.plain_slots import PlainSlots
from pagefleet.engine.scheduled_step import ScheduledSequence, ScheduledStep

POISON = ("not finite",)
Content = tuple[object, ...]


class BlockMemory:
    """Carry out steps as the runner does, and check that each sequence reads what it would have written itself."""

    def __init__(self, block_size: int, plain: PlainSlots | None = None) -> None:
        """Begin empty; `plain` are the slots of a packed cache, whose full blocks but sinks are read from elsewhere."""
        self._block_size = block_size
        self._plain = plain
        self._slots: dict[tuple[int, int], Content] = {}
        """What was written, by home (a block, or a packed cache's plain slot) and offset."""
        self._packed: dict[tuple[int, int], Content] = {}
        """By block and offset."""

    def execute(self, step: ScheduledStep, table_of: Callable[[str], list[int]], failing: Collection[str] = ()) -> None:
        """Zero, copy and write; the values of `failing` sequences are not finite from here on."""
        for home in step.blocks_to_zero if self._plain is None else step.slots_to_zero:
            for offset in range(self._block_size):
                self._slots.pop((home, offset), None)
        for block in step.blocks_to_zero:
            for offset in range(self._block_size):
                self._packed.pop((block, offset), None)
        copies = list(step.copies.values())
        assert len({copy.target for copy in copies}) == len(copies), "two copies to one block"
        assert not {copy.target for copy in copies} & {copy.source for copy in copies}
        for copy in copies:
            for offset in range(self._block_size):
                if (content := self._slots.pop((copy.target, offset), None)) is not None:
                    assert content is not POISON, "a block with values that are not finite was given out"
                if (copy.source, offset) in self._slots:
                    self._slots[copy.target, offset] = self._slots[copy.source, offset]
        written: set[tuple[int, int]] = set()
        for entry in step.entries:
            table = table_of(entry.sequence.sequence_id)
            is_failing = entry.sequence.sequence_id in failing
            for position in range(entry.first_position, entry.first_position + entry.tokens):
                slot = (self._home(table[position // self._block_size]), position % self._block_size)
                assert slot not in written, "two sequences write to one slot"
                written.add(slot)
                self._slots[slot] = POISON if is_failing else tuple(entry.sequence.token_ids[: position + 1])
        if self._plain is not None:
            for entry in step.entries:
                self._pack(self._plain, table_of(entry.sequence.sequence_id), entry)
        for entry in step.entries:
            if entry.sequence.sequence_id not in failing:
                end = entry.first_position + entry.tokens
                self._check_reads(table_of(entry.sequence.sequence_id), entry.sequence.token_ids[:end])

    def _home(self, block: int) -> int:
        return block if self._plain is None else int(self._plain.slot_of[block])

    def _pack(self, plain: PlainSlots, table: list[int], entry: ScheduledSequence) -> None:
        full = (entry.first_position + entry.tokens) // self._block_size
        for block in table[max(entry.first_position // self._block_size, plain.sink_blocks) : full]:
            for offset in range(self._block_size):
                self._packed[block, offset] = self._slots[self._home(block), offset]

    def _read(self, table: list[int], position: int, end: int) -> Content | None:
        """Return what the query of the last token reads at a position."""
        index, offset = position // self._block_size, position % self._block_size
        own = (end - 1) // self._block_size
        if self._plain is None or index < self._plain.sink_blocks or index >= own:
            return self._slots.get((self._home(table[index]), offset))
        return self._packed.get((table[index], offset))

    def _check_reads(self, table: list[int], token_ids: list[int]) -> None:
        for position in range(len(table) * self._block_size):
            content = self._read(table, position, len(token_ids))
            assert content is not POISON, "masked lanes of values that are not finite spread"
            if position < len(token_ids):
                assert content == tuple(token_ids[: position + 1]), "another sequence's values are read"
