/* Paged attention over blocks for any mix of prefill chunks and decodes: the second of the two calls of a layer.
 *
 * An item is a run of query tokens of one sequence. The query heads that share a KV head become extra rows, so keys and
 * values are read once for all of them; units that no row of the item sees are not read. Softmax runs over chunks that
 * begin at multiples of 256 positions, masked lanes add exactly zero, and a row that sees nothing of a chunk keeps its
 * state. So a row's result does not depend on what shares its tile, its step or its batch. */
#pragma once
#include "attention_store.h"
#include "attention_tiles.h"

#define HIDDEN_SCORE -1e30f
#define LOG2_E 1.44269504f

/* scores = cap * tanh(scores), for the vectors that hold positions `first` to `last`. */
static void cap_scores(float *scores, int first, int last, float cap) {
    for (int c = first / LANES * LANES; c <= last; c += LANES)
        store(scores + c, hyperbolic_tangent(load(scores + c)) * splat(cap));
}

INLINE void hide_outside(float *scores, int first, int last) {
    int begin = first / LANES * LANES, end = last / LANES * LANES;
    store(scores + begin, choose(lane_numbers() + begin >= first, load(scores + begin), splat(HIDDEN_SCORE)));
    store(scores + end, choose(lane_numbers() + end <= last, load(scores + end), splat(HIDDEN_SCORE)));
}

INLINE void store_zero_weights(float *weights, int begin, int end) {
    for (int c = begin; c < end; c += LANES) store_factors(weights, c, splat(0));
}

/* Turn one row's scores of columns `begin` to `end` into weights; only positions `first` to `last` weigh anything.
 * Scores are in units of log 2. */
static void soften(workspace *w, int row, int begin, int end, int first, int last, int64_t dim) {
    float *scores = w->scores[row];
    hide_outside(scores, first, last);
    int visible_begin = first / LANES * LANES, visible_end = last / LANES * LANES + LANES;
    vfloat most = splat(w->most[row]);
    for (int c = visible_begin; c < visible_end; c += LANES) most = largest(most, load(scores + c));
    vfloat new_most = splat(largest_of(most)), sum = splat(0);
    for (int c = visible_begin; c < visible_end; c += LANES) {
        vfloat weight = power_of_two(load(scores + c) - new_most);
        sum += weight;
        store_factors(scores, c, weight);
    }
    store_zero_weights(scores, begin, visible_begin);
    store_zero_weights(scores, visible_end, end);
    vfloat decay = power_of_two(splat(w->most[row]) - new_most);
    w->sum[row] = w->sum[row] * decay[0] + sum_of(sum);
    w->most[row] = new_most[0];
    for (int64_t d = 0; d < dim; d += LANES) store(&w->output[row][d], load(&w->output[row][d]) * decay);
}

INLINE float score_scale(const attention_arguments *a) {
    return (float)(a->soft_cap ? a->scale / a->soft_cap : a->scale * LOG2_E);
}

/* Turn all rows' scores of one chunk into weights: `begin` and `end` are units of it, `position` is the position of the
 * first row in it. */
static void soften_rows(const attention_arguments *a, workspace *w, int rows, int group, int begin, int end,
                        int64_t position) {
    const float cap = (float)a->soft_cap;
    for (int row = 0; row < rows; row++) {
        int64_t last = position + row / group, first = last - a->window + 1;
        if (first < begin * UNIT) first = begin * UNIT;
        if (last > end * UNIT - 1) last = end * UNIT - 1;
        if (first > last) {
            store_zero_weights(w->scores[row], begin * UNIT, end * UNIT);
            continue;
        }
        if (cap) cap_scores(w->scores[row], (int)first, (int)last, cap * LOG2_E);
        soften(w, row, begin * UNIT, end * UNIT, (int)first, (int)last, a->head_dim);
    }
}

INLINE void fetch_values_after_keys(workspace *w, int begin, int end) {
    for (int i = 0; i < UNITS_AHEAD; i++) {
        w->keys[end + i] = w->values[begin + i < end ? begin + i : end - 1];
        w->values[end + i] = w->values[end - 1];
    }
}

/* Say where the units `begin` to `end` of a chunk lie, and which are worth fetching after them. */
static void find_units(const attention_arguments *a, workspace *w, const int32_t *table, int64_t kv_head,
                       int64_t chunk, int begin, int end) {
    const int64_t units_per_block = a->block_size / UNIT;
    for (int u = begin; u < end; u++) {
        int64_t unit = chunk + u;
        int64_t offset = unit_offset(a, table[unit / units_per_block], kv_head, unit % units_per_block);
        w->keys[u] = (const float *)a->keys + offset;
        w->values[u] = (const float *)a->values + offset;
    }
    fetch_values_after_keys(w, begin, end);
}

typedef struct {
    const int32_t *table;
    int64_t first_row, tokens, first_position, kv_head, group;
    int rows;
} attention_item;

INLINE attention_item item_of(const attention_arguments *a, int64_t piece) {
    const int32_t *numbers = a->items + piece / a->kv_heads * 4;
    const int64_t group = a->query_heads / a->kv_heads;
    return (attention_item){
        .table = a->tables + numbers[0] * a->table_stride,
        .first_row = numbers[1],
        .tokens = numbers[2],
        .first_position = numbers[3],
        .kv_head = piece % a->kv_heads,
        .group = group,
        .rows = (int)(numbers[2] * group),
    };
}

static void begin_rows(const attention_arguments *a, workspace *w, attention_item item) {
    const int64_t group = item.group, dim = a->head_dim;
    for (int row = 0; row < item.rows; row++) {
        const element *query = (const element *)a->query + (item.first_row + row / group) * a->query_stride +
                               (item.kv_head * group + row % group) * dim;
        for (int64_t d = 0; d < dim; d += LANES) {
            store_factors(w->query[row], d, load_elements(query + d));
            store(&w->output[row][d], splat(0));
        }
        w->most[row] = HIDDEN_SCORE;
        w->sum[row] = 0;
    }
}

static void finish_rows(const attention_arguments *a, workspace *w, attention_item item) {
    const int64_t group = item.group, dim = a->head_dim;
    for (int row = 0; row < item.rows; row++) {
        element *output = (element *)a->output + (item.first_row + row / group) * a->query_heads * dim +
                          (item.kv_head * group + row % group) * dim;
        vfloat factor = splat(1.0f / w->sum[row]);
        for (int64_t d = 0; d < dim; d += LANES) store_elements(output + d, load(&w->output[row][d]) * factor);
    }
}

INLINE int64_t first_unit_of(const attention_arguments *a, attention_item item) {
    return item.first_position < a->window ? 0 : (item.first_position - a->window + 1) / UNIT;
}

INLINE int64_t end_unit_of(attention_item item) { return (item.first_position + item.tokens - 1) / UNIT + 1; }

static void attend_item(const attention_arguments *a, workspace *w, attention_item item) {
    const int64_t first_unit = first_unit_of(a, item), end_unit = end_unit_of(item);
    begin_rows(a, w, item);
    for (int64_t chunk = first_unit / CHUNK_UNITS * CHUNK_UNITS; chunk < end_unit; chunk += CHUNK_UNITS) {
        int begin = (int)(first_unit > chunk ? first_unit - chunk : 0);
        int end = (int)(end_unit - chunk < CHUNK_UNITS ? end_unit - chunk : CHUNK_UNITS);
        find_units(a, w, item.table, item.kv_head, chunk, begin, end);
        score_rows(w, item.rows, begin, end, a->head_dim, score_scale(a));
        soften_rows(a, w, item.rows, (int)item.group, begin, end, item.first_position - chunk * UNIT);
        weigh_rows(w, item.rows, begin, end, a->head_dim);
    }
    finish_rows(a, w, item);
}

EXPORT void NAME(attend)(const attention_arguments *a) {
    const int64_t pieces = a->items_count * a->kv_heads;
#pragma omp parallel if (pieces > 1)
    {
        workspace space;
#pragma omp for schedule(dynamic)
        for (int64_t piece = 0; piece < pieces; piece++) attend_item(a, &space, item_of(a, piece));
    }
}
