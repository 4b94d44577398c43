"""Rows times 4-bit weights: numbers less their zero points are exact in the rows' type, sums are scaled by group."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["tokens"])
def int4_kernel(
    output,
    rows,
    pairs,
    scales,
    zeros,
    tokens,
    row_stride,
    inputs: tl.constexpr,
    outputs: tl.constexpr,
    group: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_columns: tl.constexpr,
    dot_dtype: tl.constexpr,
):
    """Write a tile of [tokens, outputs]; the grid is [tiles of columns, tiles of rows]. See `int4_weight` for the rest.

    Sums over a group are float32 and scaled as such.
    """
    half: tl.constexpr = group // 2
    row = tl.program_id(1) * tile_rows + tl.arange(0, tile_rows)
    column = tl.program_id(0) * tile_columns + tl.arange(0, tile_columns)
    is_row, is_column = row < tokens, column < outputs
    place = tl.arange(0, half)
    places = rows + row.to(tl.int64)[:, None] * row_stride + place[None, :]
    total = tl.zeros([tile_rows, tile_columns], tl.float32)
    for index in range(inputs // group):
        start = index * group
        low_rows = tl.load(places + start, mask=is_row[:, None], other=0.0).to(dot_dtype)
        high_rows = tl.load(places + start + half, mask=is_row[:, None], other=0.0).to(dot_dtype)
        byte = (index * half + place).to(tl.int64)[:, None] * outputs + column[None, :]
        pair = tl.load(pairs + byte, mask=is_column[None, :], other=0).to(tl.int32)
        of_group = index * outputs + column
        zero = tl.load(zeros + of_group, mask=is_column, other=0).to(tl.int32)[None, :]
        scale = tl.load(scales + of_group, mask=is_column, other=0.0)
        low = ((pair & 15) - zero).to(tl.float32).to(dot_dtype)
        high = ((pair >> 4) - zero).to(tl.float32).to(dot_dtype)
        product = tl.dot(low_rows, low, input_precision="ieee")
        product = tl.dot(high_rows, high, product, input_precision="ieee")
        total += product * scale[None, :]
    targets = output + row.to(tl.int64)[:, None] * outputs + column[None, :]
    tl.store(targets, total.to(output.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])
