"""Multiply rows with 4-bit weights on a GPU."""

import torch
import triton
import triton.language as tl

from pagefleet.engine.kernels.triton.int4_kernel import int4_kernel
from pagefleet.engine.kernels.triton.int4_weight import GROUP, GpuInt4Weight
from pagefleet.engine.kernels.triton.launch import DOT_DTYPES, IS_INTERPRETED
from pagefleet.engine.kernels.triton.tiles import LinearTile, linear_tile


def multiply(rows: torch.Tensor, weight: GpuInt4Weight) -> torch.Tensor:
    """Map [tokens, inputs] to [tokens, outputs] of the same type; the numbers of a row lie side by side.

    The tiles are for rows of 16 bits: float32 is right too, but its products spill registers.
    """
    tokens, outputs = len(rows), weight.outputs
    output = torch.empty(tokens, outputs, dtype=rows.dtype, device=rows.device)
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
        **linear_constants(tile),
        dot_dtype=tl.float32 if IS_INTERPRETED else DOT_DTYPES[rows.dtype],
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return output


def linear_constants(tile: LinearTile) -> dict[str, int]:
    """Return what the kernel knows of its tile."""
    return {"group": GROUP, "tile_rows": tile.rows, "tile_columns": tile.columns}
