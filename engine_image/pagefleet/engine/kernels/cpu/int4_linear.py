"""Linears over 4-bit weights in C."""

import torch

from pagefleet.engine.kernels.cpu.library import GemmArguments, GemmMode, KernelLibrary
from pagefleet.engine.kernels.cpu.linear import PackedLinear, interleave, pack, pack_groups, pad_panels
from pagefleet.engine.layers.int4 import Int4Weight


class CpuInt4Linear(PackedLinear):
    """Multiply numbers with float32 inputs in C, and sums of groups with their scales. Batch-invariant."""

    def __init__(
        self,
        library: KernelLibrary,
        weight: Int4Weight,
        bias: torch.Tensor | None,
        dtype: torch.dtype,
        *,
        is_gated: bool,
    ) -> None:
        panel = library.panel_columns
        words, scales, zeros, self._order = weight.words, weight.scales, weight.zeros, weight.order
        if is_gated:
            words, scales, zeros = (interleave(tensor, panel) for tensor in (words, scales, zeros))
            bias = None if bias is None else interleave(bias, panel)
        self._weight = pack(words, panel)
        self._bias = None if bias is None else pad_panels(bias.float(), panel)
        self._scales = pack(scales, panel)
        self._zeros = pack_groups(zeros, panel, 1)
        super().__init__(
            library.kernel("multiply_int4", dtype),
            GemmArguments(
                weight=self._weight.data_ptr(),
                bias=None if self._bias is None else self._bias.data_ptr(),
                words=words.shape[1],
                columns=weight.outputs,
                weight_scales=self._scales.data_ptr(),
                weight_zeros=self._zeros.data_ptr(),
                groups=scales.shape[1],
            ),
        )

    @staticmethod
    def unsupported(weight: Int4Weight) -> str | None:
        """Return why the kernel cannot multiply with this weight, or None."""
        group = weight.inputs // weight.scales.shape[1]
        return f"the C product takes groups of multiples of 32 inputs, not {group}" if group % 32 else None

    @property
    def nbytes(self) -> int:
        """Return the bytes of the packed weight, its scales and zero points, and the bias."""
        return super().nbytes + self._scales.nbytes + self._zeros.nbytes

    def _run(self, rows: torch.Tensor, output: torch.Tensor, mode: GemmMode) -> torch.Tensor:
        return super()._run(rows if self._order is None else rows[:, self._order], output, mode)
