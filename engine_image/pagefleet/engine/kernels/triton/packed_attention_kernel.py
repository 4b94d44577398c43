"""Paged attention over a packed cache: an item's own block and the sinks are read plain, what lies between packed.

All queries of an item lie in one block, so what is plain to one is plain to all. Numbers are unpacked to the type of
the rows as they are loaded; a tile of packed keys lies within one block and shares the scales of its channels.
"""

import triton
import triton.language as tl

from pagefleet.engine.kernels.triton.attention_kernel import load_queries, load_tokens, score, store_sums, weigh


@triton.jit
def load_codes(codes, byte_rows, dims, head_dim: tl.constexpr, bits: tl.constexpr):
    """Return int32 [tokens, padded head_dim] of rows of `head_dim * bits / 8` bytes, laid out as by `join_bits`."""
    is_dim = (dims < head_dim)[None, :]
    rows = codes + byte_rows[:, None]
    if bits == 8:
        return tl.load(rows + dims[None, :], mask=is_dim, other=0).to(tl.int32)
    elif bits == 4:  # noqa: RET505 - Triton compiles one branch only where there is an `else`
        half: tl.constexpr = head_dim // 2
        pairs = tl.load(rows + (dims % half)[None, :], mask=is_dim, other=0).to(tl.int32)
        return (pairs >> (dims // half * 4)[None, :]) & 15
    else:
        quarter: tl.constexpr = head_dim // 4
        eighth: tl.constexpr = head_dim // 8
        low = tl.load(rows + (dims % quarter)[None, :], mask=is_dim, other=0).to(tl.int32)
        high = tl.load(rows + (quarter + dims % eighth)[None, :], mask=is_dim, other=0).to(tl.int32)
        return ((low >> (dims // quarter * 2)[None, :]) & 3) | (((high >> (dims // eighth)[None, :]) & 1) << 2)


@triton.jit(do_not_specialize=["first_item", "scale"])
def packed_attention_kernel(
    output,
    partial_output,
    partial_maxima,
    partial_sums,
    query,
    keys,
    values,
    slots,
    key_codes,
    key_scales,
    key_least,
    value_codes,
    value_scales,
    value_middles,
    scale_table,
    step,
    first_item,
    scale,
    query_stride,
    kv_heads: tl.constexpr,
    group: tl.constexpr,
    head_dim: tl.constexpr,
    head_padded: tl.constexpr,
    block_size: tl.constexpr,
    rows: tl.constexpr,
    tile: tl.constexpr,
    window: tl.constexpr,
    soft_cap: tl.constexpr,
    dot_dtype: tl.constexpr,
    is_split: tl.constexpr,
    sink_tokens: tl.constexpr,
    key_bits: tl.constexpr,
    value_bits: tl.constexpr,
):
    """Attend for one item, KV head and split of the item's packed keys; the last split sees the plain ones too.

    As `attention_kernel`, but that a table's first entries, the sinks', are plain slots, and that the plain slot of an
    item's own block is that of its first row in `slots`. The result is rotated as the values are. `tile` divides
    `block_size`.
    """
    item = step + (first_item + tl.program_id(0)) * 4
    tokens = tl.load(item + 2)
    if tokens == 0:  # pads a captured step
        return
    table = step + tl.load(item)
    first_position = tl.load(item + 3)
    kv_head = tl.program_id(1)
    queries, row, head, position, is_row = load_queries(
        query, item, query_stride, kv_head, rows, group, head_dim, head_padded, dot_dtype
    )
    dims = tl.arange(0, head_padded)

    own = first_position // block_size * block_size
    first_key = 0
    if window > 0:
        first_key = tl.maximum(first_position + 1 - window, 0)
    begin = tl.maximum(first_key // tile * tile, sink_tokens)
    end = tl.maximum(own, begin)
    is_last = True
    if is_split:
        tiles = (end - begin + tile - 1) // tile
        share = (tiles + tl.num_programs(2) - 1) // tl.num_programs(2) * tile
        begin += tl.program_id(2) * share
        end = tl.minimum(end, begin + share)
        is_last = tl.program_id(2) == tl.num_programs(2) - 1

    maximum = tl.full([rows], float("-inf"), tl.float32)
    divisor = tl.zeros([rows], tl.float32)
    total = tl.zeros([rows, head_padded], tl.float32)
    for start in range(begin, end, tile):
        block_head = tl.load(table + start // block_size).to(tl.int64) * kv_heads + kv_head
        token_rows = block_head * block_size + start % block_size + tl.arange(0, tile)
        channels = block_head * head_dim + dims
        channel_scale = tl.load(
            scale_table + tl.load(key_scales + channels, mask=dims < head_dim, other=0).to(tl.int32)
        )
        least = tl.load(key_least + channels, mask=dims < head_dim, other=0.0).to(tl.float32)
        codes = load_codes(key_codes, token_rows * (head_dim * key_bits // 8), dims, head_dim, key_bits)
        key_tile = (least[None, :] + channel_scale[None, :] * codes.to(tl.float32)).to(dot_dtype)
        key_position = start + tl.arange(0, tile)
        is_visible = is_row[:, None] & (key_position >= first_key)[None, :]
        if window > 0:
            is_visible = is_visible & (key_position[None, :] > position[:, None] - window)
        scores = score(queries, key_tile, is_visible, scale, soft_cap)
        weights, correction, maximum, divisor = weigh(scores, maximum, divisor)
        half_scale = tl.load(scale_table + tl.load(value_scales + token_rows).to(tl.int32)) * 0.5
        middle = tl.load(value_middles + token_rows).to(tl.int32) - (2**value_bits - 1)
        codes = load_codes(value_codes, token_rows * (head_dim * value_bits // 8), dims, head_dim, value_bits)
        value_tile = (half_scale[:, None] * (2 * codes + middle[:, None]).to(tl.float32)).to(dot_dtype)
        total = total * correction[:, None] + tl.dot(weights.to(dot_dtype), value_tile, input_precision="ieee")

    # The plain keys in one walk: those of the sinks, then those of the own block.
    sinks = tl.minimum(own, sink_tokens)
    own_slot = tl.load(slots + tl.load(item + 1)) // block_size
    plain_begin = tl.minimum(first_key, sinks) // tile * tile
    plain_end = tl.where(is_last, sinks + first_position + tokens - own, plain_begin)
    for start in range(plain_begin, plain_end, tile):
        place = start + tl.arange(0, tile)
        key_position = tl.where(place < sinks, place, own + place - sinks)
        is_key = (place < plain_end) & (key_position >= first_key)
        slot = tl.load(table + place // block_size, mask=is_key & (place < sinks), other=0).to(tl.int64)
        slot = tl.where(place < sinks, slot, own_slot)
        places = ((slot * kv_heads + kv_head) * block_size + key_position % block_size) * head_dim
        key_tile = load_tokens(keys, places, is_key, dims, head_dim, dot_dtype)
        is_visible = is_key[None, :] & (key_position[None, :] <= position[:, None])
        if window > 0:
            is_visible = is_visible & (key_position[None, :] > position[:, None] - window)
        scores = score(queries, key_tile, is_visible, scale, soft_cap)
        weights, correction, maximum, divisor = weigh(scores, maximum, divisor)
        value_tile = load_tokens(values, places, is_key, dims, head_dim, dot_dtype)
        total = total * correction[:, None] + tl.dot(weights.to(dot_dtype), value_tile, input_precision="ieee")

    store_sums(
        output,
        partial_output,
        partial_maxima,
        partial_sums,
        total,
        maximum,
        divisor,
        row * (kv_heads * group) + head,
        is_row,
        head_dim,
        head_padded,
        is_split,
    )
