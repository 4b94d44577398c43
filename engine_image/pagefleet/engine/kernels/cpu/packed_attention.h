/* Paged attention over a packed cache. All rows of an item lie in one block, which they read plain, as they do the
 * sinks; the blocks between them are read as codes. */
#pragma once
#include "attention.h"
#include "packed_store.h"
#include "packed_tiles.h"

/* The units of a chunk that are read as codes; those before and after are plain. */
typedef struct {
    int begin, end;
} code_units;

INLINE int clamp_unit(int64_t unit, int begin, int end) {
    return (int)(unit < begin ? begin : unit > end ? end : unit);
}

INLINE code_units code_units_of(const packed_arguments *p, attention_item item, int64_t chunk, int begin, int end) {
    const int64_t units_per_block = p->rows.block_size / UNIT;
    const int64_t own_unit = item.first_position / p->rows.block_size * units_per_block;
    code_units codes = {.begin = clamp_unit(p->sink_blocks * units_per_block - chunk, begin, end)};
    codes.end = clamp_unit(own_unit - chunk, codes.begin, end);
    return codes;
}

static void find_mixed_units(const packed_arguments *p, workspace *w, attention_item item, int64_t chunk, int begin,
                             int end, code_units codes) {
    const int64_t dim = p->rows.head_dim, units_per_block = p->rows.block_size / UNIT;
    for (int u = begin; u < end; u++) {
        const int64_t block = item.table[(chunk + u) / units_per_block], unit = (chunk + u) % units_per_block;
        if (u >= codes.begin && u < codes.end) {
            const packed_record record = record_of(p, block, item.kv_head);
            w->keys[u] = (const float *)run_at(record.key_codes, unit * UNIT * dim, (int)p->key_bits);
            w->values[u] = (const float *)run_at(record.value_codes, unit * UNIT * dim, (int)p->value_bits);
        } else {
            const int64_t offset = unit_offset(&p->rows, p->plain_slots[block], item.kv_head, unit);
            w->keys[u] = (const float *)p->rows.keys + offset;
            w->values[u] = (const float *)p->rows.values + offset;
        }
    }
    fetch_values_after_keys(w, begin, end);
}

/* Multiply the queries by a block's key scales, and by its least keys. */
static void scale_queries(workspace *w, int rows, packed_record record, int64_t dim) {
    float scales[MOST_HEAD_DIM], least[MOST_HEAD_DIM];
    for (int64_t d = 0; d < dim; d += LANES) {
        store(scales + d, scales_of(record.key_scales + d));
        store(least + d, load_least(record.key_least + d));
    }
    for (int row = 0; row < rows; row++) {
        vfloat sum = splat(0);
        for (int64_t d = 0; d < dim; d += LANES) {
            vfloat query = load_factors(w->query[row], d);
            store(&w->code_factors[row][d], query * load(scales + d));
            sum += query * load(least + d);
        }
        w->least_scores[row] = sum_of(sum);
    }
}

static void score_packed_blocks(const packed_arguments *p, workspace *w, attention_item item, int64_t chunk,
                                code_units codes, float scale) {
    const int64_t units_per_block = p->rows.block_size / UNIT, dim = p->rows.head_dim;
    for (int unit = codes.begin, stop; unit < codes.end; unit = stop) {
        const int64_t block = (chunk + unit) / units_per_block;
        stop = clamp_unit((block + 1) * units_per_block - chunk, unit, codes.end);
        scale_queries(w, item.rows, record_of(p, item.table[block], item.kv_head), dim);
        score_codes(w, item.rows, unit, stop, dim, scale, p->key_bits);
    }
}

/* Multiply the weights by the tokens' value scales, and add what the values' offsets weigh to the outputs. */
static void scale_weights(const packed_arguments *p, workspace *w, attention_item item, int64_t chunk,
                          code_units codes) {
    const int64_t units_per_block = p->rows.block_size / UNIT;
    const float levels = (float)((1 << p->value_bits) - 1);
    float scales[CHUNK_UNITS * UNIT], offsets[CHUNK_UNITS * UNIT];
    for (int unit = codes.begin; unit < codes.end; unit++) {
        const packed_record record = record_of(p, item.table[(chunk + unit) / units_per_block], item.kv_head);
        const int64_t first = (chunk + unit) % units_per_block * UNIT;
        for (int t = 0; t < UNIT; t += LANES) {
            vfloat scale = scales_of(record.value_scales + first + t);
            vint middle = load_bytes((const uint8_t *)record.value_middles + first + t) << 24 >> 24;
            store(scales + unit * UNIT + t, scale);
            store(offsets + unit * UNIT + t,
                  scale * splat(0.5f) * (__builtin_convertvector(middle, vfloat) - splat(levels)));
        }
    }
    for (int row = 0; row < item.rows; row++) {
        vfloat sum = splat(0);
        for (int c = codes.begin * UNIT; c < codes.end * UNIT; c += LANES) {
            vfloat weight = load_factors(w->scores[row], c);
            store(&w->code_factors[row][c], weight * load(scales + c));
            sum += weight * load(offsets + c);
        }
        const vfloat offset = splat(sum_of(sum));
        for (int64_t d = 0; d < p->rows.head_dim; d += LANES)
            store(&w->output[row][d], load(&w->output[row][d]) + offset);
    }
}

static void attend_mixed_chunk(const packed_arguments *p, workspace *w, attention_item item, int64_t chunk, int begin,
                               int end) {
    const attention_arguments *a = &p->rows;
    const int64_t dim = a->head_dim;
    const float scale = score_scale(a);
    const code_units codes = code_units_of(p, item, chunk, begin, end);
    find_mixed_units(p, w, item, chunk, begin, end, codes);
    score_rows(w, item.rows, begin, codes.begin, dim, scale);
    score_packed_blocks(p, w, item, chunk, codes, scale);
    score_rows(w, item.rows, codes.end, end, dim, scale);
    soften_rows(a, w, item.rows, (int)item.group, begin, end, item.first_position - chunk * UNIT);
    weigh_rows(w, item.rows, begin, codes.begin, dim);
    if (codes.begin < codes.end) {
        scale_weights(p, w, item, chunk, codes);
        weigh_codes(w, item.rows, codes.begin, codes.end, dim, p->value_bits);
    }
    weigh_rows(w, item.rows, codes.end, end, dim);
}

static void attend_packed_item(const packed_arguments *p, workspace *w, attention_item item) {
    const int64_t first_unit = first_unit_of(&p->rows, item), end_unit = end_unit_of(item);
    begin_rows(&p->rows, w, item);
    for (int64_t chunk = first_unit / CHUNK_UNITS * CHUNK_UNITS; chunk < end_unit; chunk += CHUNK_UNITS) {
        int begin = (int)(first_unit > chunk ? first_unit - chunk : 0);
        int end = (int)(end_unit - chunk < CHUNK_UNITS ? end_unit - chunk : CHUNK_UNITS);
        attend_mixed_chunk(p, w, item, chunk, begin, end);
    }
    for (int row = 0; row < item.rows; row++) turn(w->output[row], p->rows.head_dim);
    finish_rows(&p->rows, w, item);
}

EXPORT void NAME(attend_packed)(const packed_arguments *p) {
    const int64_t pieces = p->rows.items_count * p->rows.kv_heads;
#pragma omp parallel if (pieces > 1)
    {
        workspace space;
#pragma omp for schedule(dynamic)
        for (int64_t piece = 0; piece < pieces; piece++) attend_packed_item(p, &space, item_of(&p->rows, piece));
    }
}
