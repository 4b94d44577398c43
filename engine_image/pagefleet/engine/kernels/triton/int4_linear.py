"""Linears over 4-bit weights on a GPU: one launch of a Triton kernel for each product."""

import torch
import triton
import triton.language as tl

from pagefleet.engine.kernels.triton.int4_kernel import int4_kernel
from pagefleet.engine.kernels.triton.int4_weight import GpuInt4Weight, pack_for_gpu
from pagefleet.engine.kernels.triton.launch import DOT_DTYPES, IS_INTERPRETED
from pagefleet.engine.kernels.triton.tiles import LinearTile, linear_tile
from pagefleet.engine.layers.int4_linear import TorchInt4Linear
from pagefleet.engine.layers.linear import gate_and_multiply


class TritonInt4Linear:
    """Multiply with a repacked copy of a 4-bit weight. Nothing waits for the device, so a step can be captured."""

    def __init__(self, plain: TorchInt4Linear) -> None:
        self._weight = pack_for_gpu(plain.weight)
        self._order = plain.weight.order
        self._bias = plain.bias
        self._dtype = plain.dtype

    @property
    def nbytes(self) -> int:
        """Return the bytes of the weight, the order of its inputs and the bias."""
        others = (each for each in (self._order, self._bias) if each is not None)
        return self._weight.nbytes + sum(each.nbytes for each in others)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Map [tokens, inputs] to [tokens, outputs]."""
        if self._bias is None:
            return self._product(rows, self._dtype)
        return self.wide(rows).to(self._dtype)

    def wide(self, rows: torch.Tensor) -> torch.Tensor:
        """Map to float32."""
        product = self._product(rows, torch.float32)
        return product if self._bias is None else product + self._bias.float()

    def add_to(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return residual plus the product."""
        return residual + self(rows)

    def swiglu(self, rows: torch.Tensor) -> torch.Tensor:
        """Return silu(gate) * up."""
        return gate_and_multiply(self(rows))

    def _product(self, rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return multiply(rows if self._order is None else rows[:, self._order], self._weight, dtype)


def multiply(rows: torch.Tensor, weight: GpuInt4Weight, dtype: torch.dtype) -> torch.Tensor:
    """Map [tokens, inputs] to [tokens, outputs] of a type; the numbers of a row lie side by side.

    The tiles are for rows of 16 bits: float32 is right too, but its products spill registers.
    """
    tokens, outputs = len(rows), weight.outputs
    output = torch.empty(tokens, outputs, dtype=dtype, device=rows.device)
    if not tokens:
        return output
    tile = linear_tile(tokens=tokens)
    int4_kernel[(triton.cdiv(outputs, tile.columns), triton.cdiv(tokens, tile.rows))](
        output,
        rows,
        weight.pairs,
        weight.scales,
        weight.zeros,
        tokens,
        rows.stride(0),
        inputs=weight.inputs,
        outputs=outputs,
        **linear_constants(tile, weight.group),
        dot_dtype=tl.float32 if IS_INTERPRETED else DOT_DTYPES[rows.dtype],
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return output


def linear_constants(tile: LinearTile, group: int) -> dict[str, int]:
    """Return what the kernel knows of its tile and of the weight's groups."""
    return {"group": group, "tile_rows": tile.rows, "tile_columns": tile.columns}
