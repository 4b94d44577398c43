/* Paged attention over blocks for any mix of prefill chunks and decodes: the second of the two calls of a layer.
 *
 * An item is a run of query tokens of one sequence. The query heads that share a KV head become extra rows, so keys and
 * values are read once for all of them; units that no row of the item sees are not read. Softmax runs over chunks that
 * begin at multiples of 256 positions, masked lanes add exactly zero, and a row that sees nothing of a chunk keeps its
 * state. So a row's result does not depend on what shares its tile, its step or its batch. */
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

/* One softmax chunk of an item: `begin` and `end` are units of it, `position` is the position of the first row in it. */
static void attend_chunk(const attention_arguments *a, workspace *w, int rows, int group, int begin, int end,
                         int64_t position) {
    const int64_t dim = a->head_dim;
    const float cap = (float)a->soft_cap, scale = (float)(cap ? a->scale / a->soft_cap : a->scale * LOG2_E);
    score_rows(w, rows, begin, end, dim, scale);
    for (int row = 0; row < rows; row++) {
        int64_t last = position + row / group, first = last - a->window + 1;
        if (first < begin * UNIT) first = begin * UNIT;
        if (last > end * UNIT - 1) last = end * UNIT - 1;
        if (first > last) {
            store_zero_weights(w->scores[row], begin * UNIT, end * UNIT);
            continue;
        }
        if (cap) cap_scores(w->scores[row], (int)first, (int)last, cap * LOG2_E);
        soften(w, row, begin * UNIT, end * UNIT, (int)first, (int)last, dim);
    }
    weigh_rows(w, rows, begin, end, dim);
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
    for (int i = 0; i < UNITS_AHEAD; i++) {
        w->keys[end + i] = w->values[begin + i < end ? begin + i : end - 1];
        w->values[end + i] = w->values[end - 1];
    }
}

static void attend_item(const attention_arguments *a, workspace *w, const int32_t *item, int64_t kv_head) {
    const int32_t *table = a->tables + item[0] * a->table_stride;
    const int64_t first_row = item[1], tokens = item[2], first_position = item[3];
    const int64_t group = a->query_heads / a->kv_heads, dim = a->head_dim;
    const int rows = (int)(tokens * group);
    for (int row = 0; row < rows; row++) {
        const element *query = (const element *)a->query + (first_row + row / group) * a->query_stride +
                               (kv_head * group + row % group) * dim;
        for (int64_t d = 0; d < dim; d += LANES) {
            store_factors(w->query[row], d, load_elements(query + d));
            store(&w->output[row][d], splat(0));
        }
        w->most[row] = HIDDEN_SCORE;
        w->sum[row] = 0;
    }
    const int64_t first_visible = first_position < a->window ? 0 : first_position - a->window + 1;
    const int64_t first_unit = first_visible / UNIT, end_unit = (first_position + tokens - 1) / UNIT + 1;
    for (int64_t chunk = first_unit / CHUNK_UNITS * CHUNK_UNITS; chunk < end_unit; chunk += CHUNK_UNITS) {
        int begin = (int)(first_unit > chunk ? first_unit - chunk : 0);
        int end = (int)(end_unit - chunk < CHUNK_UNITS ? end_unit - chunk : CHUNK_UNITS);
        find_units(a, w, table, kv_head, chunk, begin, end);
        attend_chunk(a, w, rows, (int)group, begin, end, first_position - chunk * UNIT);
    }
    for (int row = 0; row < rows; row++) {
        element *output = (element *)a->output + (first_row + row / group) * a->query_heads * dim +
                          (kv_head * group + row % group) * dim;
        vfloat factor = splat(1.0f / w->sum[row]);
        for (int64_t d = 0; d < dim; d += LANES) store_elements(output + d, load(&w->output[row][d]) * factor);
    }
}

EXPORT void NAME(attend)(const attention_arguments *a) {
    const int64_t pieces = a->items_count * a->kv_heads;
#pragma omp parallel if (pieces > 1)
    {
        workspace space;
#pragma omp for schedule(dynamic)
        for (int64_t piece = 0; piece < pieces; piece++)
            attend_item(a, &space, a->items + piece / a->kv_heads * 4, piece % a->kv_heads);
    }
}
