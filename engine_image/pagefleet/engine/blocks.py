"""Paged KV memory as numbers: which block holds which tokens of which sequence (arXiv 2309.06180).

Token `i` of a sequence lives in block `table[i // block_size]`, slot `i % block_size`. A table grows by whole blocks,
on demand, so at most `block_size - 1` slots of a sequence are unused.
"""

from collections import Counter


class OutOfBlocks(Exception):
    """Report an allocation that the caller should have asked `can_allocate` about first."""


class IntegrityError(AssertionError):
    """Report blocks that are lost, shared by accident or counted twice: always a bug of ours."""


class BlockManager:
    """Own all blocks; every operation is O(1) per block that changes hands."""

    def __init__(self, *, blocks_total: int, block_size: int) -> None:
        self.blocks_total = blocks_total
        self.block_size = block_size
        # Taken from the end, so the lowest ids, which are the warmest in the CPU's caches, are used again first.
        self._free: list[int] = list(reversed(range(blocks_total)))
        self._tables: dict[str, list[int]] = {}

    @property
    def blocks_free(self) -> int:
        """Count the empty blocks."""
        return len(self._free)

    @property
    def blocks_active(self) -> int:
        """Count the blocks that live sequences hold."""
        return self.blocks_total - len(self._free)

    def blocks_for(self, tokens: int) -> int:
        """Return how many blocks hold this many tokens."""
        return -(-tokens // self.block_size)

    def blocks_missing(self, request_id: str, tokens: int) -> int:
        """Return how many more blocks the sequence needs to hold this many tokens."""
        return self.blocks_for(tokens) - len(self._tables.get(request_id, ()))

    def can_allocate(self, request_id: str, tokens: int) -> bool:
        """Tell whether `allocate` with the same arguments would succeed."""
        return self.blocks_missing(request_id, tokens) <= len(self._free)

    def allocate(self, request_id: str, tokens: int) -> None:
        """Grow the sequence's table to hold `tokens` tokens in all; raises OutOfBlocks and changes nothing."""
        missing = self.blocks_missing(request_id, tokens)
        if missing > len(self._free):
            raise OutOfBlocks(f"{request_id} needs {missing} blocks, {len(self._free)} are free")
        table = self._tables.setdefault(request_id, [])
        for _ in range(missing):
            table.append(self._free.pop())

    def free(self, request_id: str) -> None:
        """Take back all blocks of the sequence; does nothing when it holds none."""
        for block in reversed(self._tables.pop(request_id, [])):
            self._free.append(block)

    def table(self, request_id: str) -> list[int]:
        """Return the sequence's block table, not a copy; empty when it holds nothing."""
        return self._tables.get(request_id, [])

    def holders(self) -> frozenset[str]:
        """Return the ids of the sequences that hold blocks."""
        return frozenset(self._tables)

    def check_integrity(self) -> None:
        """Check that every block is either free or in exactly one table; raises IntegrityError."""
        seen = Counter(self._free)
        for table in self._tables.values():
            seen.update(table)
        twice = sorted(block for block, count in seen.items() if count > 1)
        if twice:
            raise IntegrityError(f"blocks {twice[:10]} are in two places")
        if set(seen) != set(range(self.blocks_total)):
            lost = sorted(set(range(self.blocks_total)) - set(seen))
            unknown = sorted(set(seen) - set(range(self.blocks_total)))
            raise IntegrityError(f"blocks {lost[:10]} are lost, blocks {unknown[:10]} do not exist")
