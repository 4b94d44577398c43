"""Round the blocks that a step fills: the numbers of `packed_format`, one program for each block and KV head.

A head's channels are taken as eight runs of neighbours: bytes hold numbers that lie whole runs apart, so joining them
is a sum over runs. Compiled without fused multiply-adds, so that numbers at the border of two codes fall as in torch.
"""

import triton
import triton.language as tl


@triton.jit
def scale_code(scale_table, wanted):
    """Return int32 codes of the least scales that are no smaller, by bisection; 255 where none is, or for NaN."""
    code = tl.zeros_like(wanted).to(tl.int32)
    for power in tl.static_range(8):
        is_within = wanted <= tl.load(scale_table + code + (128 >> power) - 1)
        code += tl.where(is_within, 0, 128 >> power)
    return code


@triton.jit
def rounded(numbers):
    """Return the nearest whole numbers, halves to even, of numbers below 2 ** 22: those have no room for a fraction."""
    return (numbers + 12582912.0) - 12582912.0


@triton.jit
def rounded_down(numbers):
    """Return the largest number of bfloat16 that is no larger, as float32."""
    bits = numbers.to(tl.int32, bitcast=True)
    nearer_zero = bits & -65536
    below = tl.where((nearer_zero != bits) & (numbers < 0), nearer_zero + 65536, nearer_zero)
    return below.to(tl.float32, bitcast=True)


@triton.jit
def store_bytes(target, token_rows, joined, run_dim: tl.constexpr, place: tl.constexpr):
    """Write [tokens, runs, padded run] bytes from byte `place` of each row on."""
    runs: tl.constexpr = joined.shape[1]
    dim = tl.arange(0, joined.shape[2])
    byte = place + tl.arange(0, runs)[:, None] * run_dim + dim[None, :]
    mask = (dim < run_dim)[None, None, :]
    tl.store(target + token_rows[:, None, None] + byte[None, :, :], joined.to(tl.uint8), mask=mask)


@triton.jit
def store_codes(target, token_rows, codes, run_dim: tl.constexpr, bits: tl.constexpr):
    """Write int32 codes, [tokens, 8 runs, padded run], as `join_bits` lays them out."""
    tokens: tl.constexpr = codes.shape[0]
    padded: tl.constexpr = codes.shape[2]
    if bits == 8:
        store_bytes(target, token_rows, codes, run_dim, 0)
    elif bits == 4:
        pairs = tl.reshape(codes, [tokens, 2, 4, padded]) << (tl.arange(0, 2) * 4)[None, :, None, None]
        store_bytes(target, token_rows, tl.sum(pairs, 1), run_dim, 0)
    else:
        low = tl.reshape(codes & 3, [tokens, 4, 2, padded]) << (tl.arange(0, 4) * 2)[None, :, None, None]
        high = tl.reshape(codes >> 2, [tokens, 8, 1, padded]) << tl.arange(0, 8)[None, :, None, None]
        store_bytes(target, token_rows, tl.sum(low, 1), run_dim, 0)
        store_bytes(target, token_rows, tl.sum(high, 1), run_dim, 2 * run_dim)


@triton.jit(do_not_specialize=["first_fill"])
def pack_kernel(
    keys,
    values,
    key_codes,
    key_scales,
    key_least,
    value_codes,
    value_scales,
    value_middles,
    scale_table,
    step,
    first_fill,
    kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    run_padded: tl.constexpr,
    block_size: tl.constexpr,
    key_bits: tl.constexpr,
    value_bits: tl.constexpr,
):
    """Pack one head of one block; `step` holds int32 pairs of plain slot and block from `first_fill` on.

    A negative slot pads a captured step. `keys` and `values` are [slots, kv_heads, block_size, head_dim].
    """
    fill = step + first_fill + tl.program_id(0) * 2
    slot = tl.load(fill).to(tl.int64)
    if slot < 0:
        return
    kv_head = tl.program_id(1)
    block_head = tl.load(fill + 1).to(tl.int64) * kv_heads + kv_head
    run_dim: tl.constexpr = head_dim // 8
    token = tl.arange(0, block_size)
    dim = tl.arange(0, run_padded)
    channel = tl.arange(0, 8)[:, None] * run_dim + dim[None, :]
    is_channel = (dim < run_dim)[None, :] & (tl.arange(0, 8) >= 0)[:, None]
    plain_rows = ((slot * kv_heads + kv_head) * block_size + token) * head_dim
    places = plain_rows[:, None, None] + channel[None, :, :]
    token_rows = block_head * block_size + token

    plain = tl.load(keys + places, mask=is_channel[None, :, :], other=0.0).to(tl.float32)
    # Reductions may pass over NaN; a product with zero does not, nor does it let infinity through.
    least = rounded_down(tl.min(plain, 0)) + tl.sum(plain * 0.0, 0)
    levels: tl.constexpr = 2**key_bits - 1
    code = scale_code(scale_table, tl.div_rn(tl.max(plain, 0) - least, tl.full([8, run_padded], levels, tl.float32)))
    scale = tl.load(scale_table + code)
    codes = tl.div_rn(plain - least[None, :, :], tl.broadcast_to(scale[None, :, :], plain.shape))
    codes = rounded(tl.minimum(tl.maximum(codes, 0.0), levels)).to(tl.int32)
    store_codes(key_codes, token_rows * (head_dim * key_bits // 8), codes, run_dim, key_bits)
    channels = block_head * head_dim + channel
    tl.store(key_scales + channels, code.to(tl.uint8), mask=is_channel)
    tl.store(key_least + channels, least.to(tl.bfloat16), mask=is_channel)

    plain = tl.load(values + places, mask=is_channel[None, :, :], other=0.0).to(tl.float32)
    low = tl.min(tl.min(tl.where(is_channel[None, :, :], plain, float("inf")), 2), 1)
    high = tl.max(tl.max(tl.where(is_channel[None, :, :], plain, float("-inf")), 2), 1)
    value_levels: tl.constexpr = 2**value_bits - 1
    wanted = tl.div_rn(high - low, tl.full([block_size], value_levels, tl.float32))
    wanted = tl.maximum(wanted, tl.div_rn(tl.abs(low + high), tl.full([block_size], 127.0, tl.float32)))
    code = scale_code(scale_table, wanted)
    scale = tl.load(scale_table + code)
    middle = rounded(tl.minimum(tl.maximum(tl.div_rn(low + high, scale), -127.0), 127.0))
    first = scale * (middle - value_levels) / 2
    codes = tl.div_rn(plain - first[:, None, None], tl.broadcast_to(scale[:, None, None], plain.shape))
    codes = rounded(tl.minimum(tl.maximum(codes, 0.0), value_levels)).to(tl.int32)
    store_codes(value_codes, token_rows * (head_dim * value_bits // 8), codes, run_dim, value_bits)
    tl.store(value_scales + token_rows, code.to(tl.uint8))
    tl.store(value_middles + token_rows, middle.to(tl.int8))
