"""Paged attention for prefill and decode, and the merge of a context that several programs have split.

One program computes the query heads of one KV head for up to `rows // group` tokens of one sequence: they are the rows
of one tile, so a key is read once for all of them. It walks over the keys in tiles with an online softmax (arXiv
2205.14135), in powers of two: exp2 is the instruction that exists, and log2(e) is part of the scale.

Softmax without NaN from nothing: while a row has seen no key its maximum is -inf, and -inf - -inf is NaN, so 0 stands
in for that maximum; weights and the correction of what came before are then exp2(-inf) = 0. What is not finite in the
cache does come out as NaN, since sums of weights that are NaN never equal 0.
"""

import triton
import triton.language as tl


@triton.jit
def load_tokens(cache, token_rows, is_seen, dims, head_dim: tl.constexpr, dtype: tl.constexpr):
    """Return [tokens, padded head_dim] of one head, 0 where nothing is seen; a quantized cache is read here."""
    mask = is_seen[:, None] & (dims < head_dim)[None, :]
    return tl.load(cache + token_rows[:, None] + dims[None, :], mask=mask, other=0.0).to(dtype)


@triton.jit
def cap_scores(scores, soft_cap: tl.constexpr):
    """Return soft_cap * tanh(scores / soft_cap), by a power that cannot overflow."""
    doubled_log2: tl.constexpr = 2 * 1.4426950408889634 / soft_cap
    power = tl.exp2(-tl.abs(scores) * doubled_log2)
    magnitude = soft_cap * (1.0 - power) / (1.0 + power)
    return tl.where(scores < 0, -magnitude, magnitude)


@triton.jit
def load_queries(
    query,
    item,
    query_stride,
    kv_head,
    rows: tl.constexpr,
    group: tl.constexpr,
    head_dim: tl.constexpr,
    head_padded: tl.constexpr,
    dtype: tl.constexpr,
):
    """Return an item's [rows, padded head_dim] queries, and of each its row, head, position and whether it exists."""
    tile_row = tl.arange(0, rows)
    token = tile_row // group
    head = kv_head * group + tile_row % group
    dims = tl.arange(0, head_padded)
    is_row = token < tl.load(item + 2)
    row = (tl.load(item + 1) + token).to(tl.int64)
    places = row[:, None] * query_stride + head[:, None] * head_dim + dims[None, :]
    queries = tl.load(query + places, mask=is_row[:, None] & (dims < head_dim)[None, :], other=0.0).to(dtype)
    return queries, row, head, tl.load(item + 3) + token, is_row


@triton.jit
def score(queries, key_tile, is_visible, scale, soft_cap: tl.constexpr):
    """Return scores as powers of two, -inf where a query does not see the key."""
    log2_e: tl.constexpr = 1.4426950408889634
    scores = tl.dot(queries, tl.trans(key_tile), input_precision="ieee")
    scores = cap_scores(scores * scale, soft_cap) * log2_e if soft_cap > 0 else scores * (scale * log2_e)
    return tl.where(is_visible, scores, float("-inf"))


@triton.jit
def weigh(scores, maximum, divisor):
    """Return a tile's weights, what corrects sums so far, and the new maximum and divisor."""
    new_maximum = tl.maximum(maximum, tl.max(scores, 1))
    finite_maximum = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
    weights = tl.exp2(scores - finite_maximum[:, None])
    correction = tl.exp2(maximum - finite_maximum)
    return weights, correction, new_maximum, divisor * correction + tl.sum(weights, 1)


@triton.jit
def store_sums(
    output,
    partial_output,
    partial_maxima,
    partial_sums,
    total,
    maximum,
    divisor,
    place,
    is_row,
    head_dim: tl.constexpr,
    head_padded: tl.constexpr,
    is_split: tl.constexpr,
):
    """Write the result at `place`, row times heads plus head; of a split context, its sums to the partial ones."""
    dims = tl.arange(0, head_padded)
    is_value = is_row[:, None] & (dims < head_dim)[None, :]
    if is_split:
        place = place * tl.num_programs(2) + tl.program_id(2)
        tl.store(partial_maxima + place, maximum, mask=is_row)
        tl.store(partial_sums + place, divisor, mask=is_row)
        tl.store(partial_output + place[:, None] * head_padded + dims[None, :], total, mask=is_value)
    else:
        divisor = tl.where(is_row, divisor, 1.0)
        result = (total / divisor[:, None]).to(output.dtype.element_ty)
        tl.store(output + place[:, None] * head_dim + dims[None, :], result, mask=is_value)


@triton.jit(do_not_specialize=["first_item", "scale"])
def attention_kernel(
    output,
    partial_output,
    partial_maxima,
    partial_sums,
    query,
    keys,
    values,
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
):
    """Attend for one item, KV head and split of the item's keys; the grid is [items, kv_heads, splits].

    `step` is int32: items of 4 numbers (index of the block table in `step`, first row, rows' tokens, position of the
    first), then block tables. `window` 0 sees all, `soft_cap` 0 caps nothing. Without a split the result goes to
    `output` [rows, heads, head_dim]; with one, sums that are not yet divided go to `partial_output` [rows, heads,
    splits, head_padded], and their maxima and divisors to [rows, heads, splits].
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

    first_key = 0
    if window > 0:
        first_key = tl.maximum(first_position + 1 - window, 0)
    begin = first_key // tile * tile
    end = first_position + tokens
    if is_split:
        tiles = (end - begin + tile - 1) // tile
        share = (tiles + tl.num_programs(2) - 1) // tl.num_programs(2) * tile
        begin += tl.program_id(2) * share
        end = tl.minimum(end, begin + share)

    maximum = tl.full([rows], float("-inf"), tl.float32)
    divisor = tl.zeros([rows], tl.float32)
    total = tl.zeros([rows, head_padded], tl.float32)
    for start in range(begin, end, tile):
        key_position = start + tl.arange(0, tile)
        is_key = (key_position >= first_key) & (key_position < end)
        block = tl.load(table + key_position // block_size, mask=is_key, other=0).to(tl.int64)
        places = ((block * kv_heads + kv_head) * block_size + key_position % block_size) * head_dim
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


@triton.jit(do_not_specialize=["splits"])
def merge_kernel(
    output,
    partial_output,
    partial_maxima,
    partial_sums,
    step,
    splits,
    heads: tl.constexpr,
    head_dim: tl.constexpr,
    head_padded: tl.constexpr,
    splits_padded: tl.constexpr,
):
    """Merge the splits of one row and head; the grid is [items, heads], and items are of one row each."""
    item = step + tl.program_id(0) * 4
    if tl.load(item + 2) == 0:
        return
    place = tl.load(item + 1).to(tl.int64) * heads + tl.program_id(1)
    split = tl.arange(0, splits_padded)
    dims = tl.arange(0, head_padded)
    is_split = split < splits
    maxima = tl.load(partial_maxima + place * splits + split, mask=is_split, other=float("-inf"))
    sums = tl.load(partial_sums + place * splits + split, mask=is_split, other=0.0)
    maximum = tl.max(maxima, 0)
    finite_maximum = tl.where(maximum == float("-inf"), 0.0, maximum)
    # A split that got no key has the sum 0; what is not finite is not equal to 0 and must be seen.
    weights = tl.where(sums != 0, tl.exp2(maxima - finite_maximum), 0.0)
    is_value = (sums != 0)[:, None] & (dims < head_dim)[None, :]
    places = (place * splits + split)[:, None] * head_padded + dims[None, :]
    values = tl.load(partial_output + places, mask=is_value, other=0.0)
    result = tl.sum(values * weights[:, None], 0) / tl.sum(sums * weights, 0)
    tl.store(output + place * head_dim + dims, result.to(output.dtype.element_ty), mask=dims < head_dim)
