"""Rotate queries and keys, and write keys and values into their blocks: one program for each row and KV head."""

import triton
import triton.language as tl


@triton.jit
def cache_number(numbers, dtype: tl.constexpr):
    """Return numbers as the cache holds them; those too large for fp8 become its largest, NaN stays."""
    if dtype == tl.float8e4nv:
        numbers = tl.clamp(numbers.to(tl.float32), -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL)
    return numbers.to(dtype)


@triton.jit
def store_kernel(
    query,
    key,
    value,
    keys,
    values,
    slots,
    cosine,
    sine,
    query_stride,
    kv_stride,
    kv_heads: tl.constexpr,
    group: tl.constexpr,
    group_padded: tl.constexpr,
    half: tl.constexpr,
    half_padded: tl.constexpr,
    block_size: tl.constexpr,
    rotates: tl.constexpr,
):
    """Store [rows, kv_heads, 2 * half] keys and values at int64 [rows] slots; a row whose slot is negative is padding.

    Where the kernel rotates, it writes the rotated queries back where they lay. Rows are `stride` numbers apart, heads
    lie side by side. `cosine` and `sine` are [rows, 2 * half].
    """
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    slot = tl.load(slots + row)
    if slot < 0:
        return
    head_dim: tl.constexpr = 2 * half
    low = tl.arange(0, half_padded)
    is_low = low < half
    source = row.to(tl.int64) * kv_stride + kv_head * head_dim + low
    key_low = tl.load(key + source, mask=is_low, other=0.0)
    key_high = tl.load(key + source + half, mask=is_low, other=0.0)
    if rotates:
        angle = row.to(tl.int64) * head_dim + low
        cosine_low = tl.load(cosine + angle, mask=is_low, other=0.0).to(tl.float32)
        cosine_high = tl.load(cosine + angle + half, mask=is_low, other=0.0).to(tl.float32)
        sine_low = tl.load(sine + angle, mask=is_low, other=0.0).to(tl.float32)
        sine_high = tl.load(sine + angle + half, mask=is_low, other=0.0).to(tl.float32)

        heads = tl.arange(0, group_padded)
        is_query = (heads < group)[:, None] & is_low[None, :]
        place = row.to(tl.int64) * query_stride + (kv_head * group + heads)[:, None] * head_dim + low[None, :]
        query_low = tl.load(query + place, mask=is_query, other=0.0).to(tl.float32)
        query_high = tl.load(query + place + half, mask=is_query, other=0.0).to(tl.float32)
        rotated_low = query_low * cosine_low[None, :] - query_high * sine_low[None, :]
        rotated_high = query_high * cosine_high[None, :] + query_low * sine_high[None, :]
        tl.store(query + place, rotated_low.to(query.dtype.element_ty), mask=is_query)
        tl.store(query + place + half, rotated_high.to(query.dtype.element_ty), mask=is_query)

        # Through the rows' type, as queries go: the cache may be wider, and both must be rounded alike.
        plain_low, plain_high = key_low.to(tl.float32), key_high.to(tl.float32)
        key_low = (plain_low * cosine_low - plain_high * sine_low).to(key.dtype.element_ty)
        key_high = (plain_high * cosine_high + plain_low * sine_high).to(key.dtype.element_ty)
    block, offset = slot // block_size, slot % block_size
    target = ((block * kv_heads + kv_head) * block_size + offset) * head_dim + low
    tl.store(keys + target, cache_number(key_low, keys.dtype.element_ty), mask=is_low)
    tl.store(keys + target + half, cache_number(key_high, keys.dtype.element_ty), mask=is_low)
    value_low = tl.load(value + source, mask=is_low, other=0.0)
    value_high = tl.load(value + source + half, mask=is_low, other=0.0)
    tl.store(values + target, cache_number(value_low, values.dtype.element_ty), mask=is_low)
    tl.store(values + target + half, cache_number(value_high, values.dtype.element_ty), mask=is_low)
