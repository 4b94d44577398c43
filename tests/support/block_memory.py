"""What the KV cache would hold, without a model: every slot remembers the tokens that its values depend on."""

from collections.abc import Callable, Collection

from pagefleet.engine.scheduled_step import ScheduledStep

POISON = ("not finite",)
Content = tuple[object, ...]


class BlockMemory:
    """Carry out steps as the runner does, and check that each sequence reads what it would have written itself."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._slots: dict[tuple[int, int], Content] = {}

    def execute(self, step: ScheduledStep, table_of: Callable[[str], list[int]], failing: Collection[str] = ()) -> None:
        """Zero, copy and write; the values of `failing` sequences are not finite from here on."""
        for block in step.blocks_to_zero:
            for offset in range(self._block_size):
                self._slots.pop((block, offset), None)
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
                slot = (table[position // self._block_size], position % self._block_size)
                assert slot not in written, "two sequences write to one slot"
                written.add(slot)
                self._slots[slot] = POISON if is_failing else tuple(entry.sequence.token_ids[: position + 1])
        for entry in step.entries:
            if entry.sequence.sequence_id not in failing:
                end = entry.first_position + entry.tokens
                self._check_reads(table_of(entry.sequence.sequence_id), entry.sequence.token_ids[:end])

    def _check_reads(self, table: list[int], token_ids: list[int]) -> None:
        for position in range(len(table) * self._block_size):
            content = self._slots.get((table[position // self._block_size], position % self._block_size))
            assert content is not POISON, "masked lanes of values that are not finite spread"
            if position < len(token_ids):
                assert content == tuple(token_ids[: position + 1]), "another sequence's values are read"
