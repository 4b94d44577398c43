"""The blocks that nobody holds, in the order in which they are given out again: a doubly linked list inside two arrays.

A cached block leaves from the middle when a prompt hits it, which takes O(1) here and O(n) in a deque.
"""

from collections.abc import Iterator

ABSENT = -1


class FreeList:
    """Hold block ids from 0 to `blocks_total - 1`, each at most once; all are in it at first, in order."""

    def __init__(self, blocks_total: int) -> None:
        # The sentinel `blocks_total` stands before the first and behind the last, so no operation has a special case.
        self._sentinel = blocks_total
        self._next: list[int] = [*range(1, blocks_total + 1), 0]
        self._previous: list[int] = [blocks_total, *range(blocks_total)]
        self._length = blocks_total

    def __len__(self) -> int:
        return self._length

    def __contains__(self, block: int) -> bool:
        return self._next[block] != ABSENT

    def __iter__(self) -> Iterator[int]:
        block = self._next[self._sentinel]
        while block != self._sentinel:
            yield block
            block = self._next[block]

    def pop_first(self) -> int:
        """Take the block that is due next; raises IndexError when there is none."""
        if not self._length:
            raise IndexError("no block is free")
        block = self._next[self._sentinel]
        self.remove(block)
        return block

    def remove(self, block: int) -> None:
        """Take out a block, wherever it stands; it must be there."""
        before, behind = self._previous[block], self._next[block]
        self._next[before], self._previous[behind] = behind, before
        self._next[block] = ABSENT
        self._length -= 1

    def push_first(self, block: int) -> None:
        """Put a block where it is used next."""
        self._insert(block, before=self._sentinel)

    def push_last(self, block: int) -> None:
        """Put a block where it is used last."""
        self._insert(block, before=self._previous[self._sentinel])

    def _insert(self, block: int, *, before: int) -> None:
        behind = self._next[before]
        self._next[before], self._previous[block] = block, before
        self._next[block], self._previous[behind] = behind, block
        self._length += 1
