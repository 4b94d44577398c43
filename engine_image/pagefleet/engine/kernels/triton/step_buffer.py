"""What a step's kernels read besides rows, at addresses that stay: a captured CUDA graph reads them again."""

import numpy as np
import torch


class StepBuffer:
    """Hold a step's items with their block tables, and its slots, on the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.numbers = torch.empty(0, dtype=torch.int32, device=device)
        """[capacity]: the items and block tables of `tiles.StepItems`."""
        self.slots = torch.empty(0, dtype=torch.int64, device=device)
        """[capacity]: where each row's key and value go; negative for a row that pads."""

    def reserve(self, *, numbers: int, rows: int) -> None:
        """Make room; what is in the buffers and where they lie is lost if they have to grow."""
        if numbers > len(self.numbers):
            self.numbers = torch.empty(numbers, dtype=torch.int32, device=self._device)
        if rows > len(self.slots):
            self.slots = torch.empty(rows, dtype=torch.int64, device=self._device)

    @property
    def addresses(self) -> tuple[int, int]:
        """Return where the buffers lie, for a graph to notice that they have grown since it was captured."""
        return self.numbers.data_ptr(), self.slots.data_ptr()

    def fill(self, numbers: np.ndarray, slots: torch.Tensor, rows: int) -> None:
        """Copy int32 numbers and int64 [tokens] slots; rows behind them are padding."""
        if len(numbers) > len(self.numbers) or rows > len(self.slots):
            self.reserve(numbers=2 * len(numbers), rows=2 * rows)
        # From pageable memory: the copy has left it when the call returns, so the next step may reuse it.
        self.numbers[: len(numbers)].copy_(torch.from_numpy(numbers))
        self.slots[: len(slots)].copy_(slots)
        self.slots[len(slots) : rows].fill_(-1)
