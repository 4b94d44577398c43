/* Store rows plain, their values rotated, then pack the blocks that the step fills. */
#pragma once
#include "attention_store.h"
#include "packed_codes.h"

#define INFINITE __builtin_inff()

/* One of the numbers of each word. */
INLINE vfloat load_numbers(const float *words, int64_t number) {
#if PAIR == 2
    vword word = (vword)load(words);
    return (vfloat)(number % 2 ? word & 0xffff0000 : word << 16);
#else
    return (void)number, load(words);
#endif
}

INLINE vint codes_of(vfloat numbers, float first, float scale, int bits) {
    vfloat steps = (numbers - splat(first)) / splat(scale);
    return nearest(smallest(largest(steps, splat(0)), splat((float)((1 << bits) - 1)))); /* NaN becomes 0 */
}

static void pack_channel(const packed_arguments *p, const float *units, packed_record record, int64_t d) {
    const int64_t dim = p->rows.head_dim, words = UNIT * (dim / PAIR), units_per_block = p->rows.block_size / UNIT;
    const int bits = (int)p->key_bits;
    const float *channel = units + d / PAIR * UNIT;
    vfloat low = splat(INFINITE), high = splat(-INFINITE), zero = splat(0);
    for (int64_t unit = 0; unit < units_per_block; unit++)
        for (int t = 0; t < UNIT; t += LANES) {
            vfloat keys = load_numbers(channel + unit * words + t, d);
            low = smallest(low, keys), high = largest(high, keys);
            zero += keys * splat(0); /* not a number where a key is not finite, which the comparisons may miss */
        }
    record.key_least[d] = rounded_down(sum_of(zero) - largest_of(-low));
    const float least = load_bfloat16(record.key_least + d);
    record.key_scales[d] = (uint8_t)scale_code((largest_of(high) - least) / (float)((1 << bits) - 1));
    const float scale = scale_of(record.key_scales[d]);
    for (int64_t unit = 0; unit < units_per_block; unit++)
        for (int t = 0; t < UNIT; t += LANES) {
            vint codes = codes_of(load_numbers(channel + unit * words + t, d), least, scale, bits);
            store_codes((uint8_t *)run_at(record.key_codes, (unit * dim + d) * UNIT + t, bits), codes, bits);
        }
}

static void pack_token(const packed_arguments *p, const float *units, packed_record record, int64_t token) {
    const int64_t dim = p->rows.head_dim;
    const int bits = (int)p->value_bits;
    const float levels = (float)((1 << bits) - 1);
    const float *line = units + token / PAIR * dim;
    vfloat low = splat(INFINITE), high = splat(-INFINITE);
    for (int64_t d = 0; d < dim; d += LANES) {
        vfloat values = load_numbers(line + d, token);
        low = smallest(low, values), high = largest(high, values);
    }
    const float least = -largest_of(-low), most = largest_of(high), twice_middle = least + most;
    const float step = (most - least) / levels, shift = __builtin_fabsf(twice_middle) / 127;
    record.value_scales[token] = (uint8_t)scale_code(step > shift ? step : shift);
    const float scale = scale_of(record.value_scales[token]);
    const float middle = nearest(smallest(largest(splat(twice_middle / scale), splat(-127)), splat(127)))[0];
    record.value_middles[token] = (int8_t)middle;
    for (int64_t d = 0; d < dim; d += LANES) {
        vint codes = codes_of(load_numbers(line + d, token), scale * (middle - levels) / 2, scale, bits);
        store_codes((uint8_t *)run_at(record.value_codes, token * dim + d, bits), codes, bits);
    }
}

EXPORT void NAME(rotate_store_and_pack)(const packed_arguments *p) {
    const attention_arguments *a = &p->rows;
    store_rows(a, 1);
    const int64_t pieces = p->filled_count * a->kv_heads;
#pragma omp parallel for schedule(static) if (pieces > 1)
    for (int64_t piece = 0; piece < pieces; piece++) {
        const int64_t kv_head = piece % a->kv_heads;
        const int32_t *filled = p->filled + piece / a->kv_heads * 2;
        const int64_t offset = unit_offset(a, filled[0], kv_head, 0);
        const packed_record record = record_of(p, filled[1], kv_head);
        for (int64_t d = 0; d < a->head_dim; d++) pack_channel(p, (const float *)a->keys + offset, record, d);
        for (int64_t t = 0; t < a->block_size; t++) pack_token(p, (const float *)a->values + offset, record, t);
    }
}
