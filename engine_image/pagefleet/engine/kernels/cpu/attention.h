/* Paged attention over blocks for any mix of prefill chunks and decodes: rotate and store, then attend.
 *
 * An item is a run of query tokens of one sequence. The query heads that share a KV head become extra rows, so keys and
 * values are read once for all of them. Softmax runs over chunks that begin at multiples of 256 positions and masked
 * lanes add exactly zero, so a row's result does not depend on what shares its tile, its step or its batch. */
#include "arguments.h"
#include "element.h"

#define UNIT 16          /* tokens that are stored together */
#define CHUNK_UNITS 16   /* units between two rescalings */
#define MOST_ROWS 64     /* query tokens of an item x query heads of a group */
#define MOST_HEAD_DIM 256
#define UNIT_VECTORS (UNIT / LANES)
#define HIDDEN_SCORE -1e30f

/* Words between the start of a layer's pool and unit `unit` of a sequence. Keys and values have units of equal size. */
INLINE int64_t unit_offset(const attention_arguments *a, const int32_t *table, int64_t head, int64_t unit) {
    int64_t units_per_block = a->block_size / UNIT;
    int64_t block = table[unit / units_per_block];
    return ((block * a->kv_heads + head) * units_per_block + unit % units_per_block) * UNIT * (a->head_dim / PAIR);
}

INLINE void rotate(const attention_arguments *a, const element *head, int64_t token, element *result) {
    const element *cosine = (const element *)a->cosine + token * a->head_dim;
    const element *sine = (const element *)a->sine + token * a->head_dim;
    int64_t half = a->head_dim / 2;
    int64_t i = 0;
    for (; i + LANES <= half; i += LANES) {
        vfloat low = load_elements(head + i), high = load_elements(head + half + i);
        vfloat rotated_low = rounded(low * load_elements(cosine + i)) - rounded(high * load_elements(sine + i));
        vfloat rotated_high =
            rounded(high * load_elements(cosine + half + i)) + rounded(low * load_elements(sine + half + i));
        store_elements(result + i, rotated_low);
        store_elements(result + half + i, rotated_high);
    }
    for (; i < half; i++) {
        float low = load_element(head + i), high = load_element(head + half + i);
        float rotated_low =
            rounded_scalar(low * load_element(cosine + i)) - rounded_scalar(high * load_element(sine + i));
        float rotated_high = rounded_scalar(high * load_element(cosine + half + i)) +
                             rounded_scalar(low * load_element(sine + half + i));
        store_element(result + i, rotated_low);
        store_element(result + half + i, rotated_high);
    }
}

INLINE void store_token(const attention_arguments *a, int64_t token, int64_t kv_head) {
    int64_t dim = a->head_dim, unit_elements = UNIT * dim;
    int64_t units_per_block = a->block_size / UNIT;
    int64_t block = a->slots[token] / a->block_size, offset = a->slots[token] % a->block_size;
    int64_t unit = ((block * a->kv_heads + kv_head) * units_per_block + offset / UNIT) * unit_elements;
    int64_t slot = offset % UNIT;
    const element *key = (const element *)a->key + token * a->kv_stride + kv_head * dim;
    const element *value = (const element *)a->value + token * a->kv_stride + kv_head * dim;
    element turned[MOST_HEAD_DIM];
    if (a->cosine) {
        rotate(a, key, token, turned);
        key = turned;
    }
    element *keys = (element *)a->keys + unit + slot * PAIR;
    element *values = (element *)a->values + unit + (slot / PAIR) * dim * PAIR + slot % PAIR;
    for (int64_t i = 0; i < dim; i++) keys[(i / PAIR) * UNIT * PAIR + i % PAIR] = key[i];
    for (int64_t i = 0; i < dim; i++) values[i * PAIR] = value[i];
}

EXPORT void NAME(rotate_and_store)(const attention_arguments *a) {
#pragma omp parallel for schedule(static) if (a->tokens > 8)
    for (int64_t token = 0; token < a->tokens; token++) {
        for (int64_t head = 0; head < a->kv_heads; head++) store_token(a, token, head);
        if (a->cosine)
            for (int64_t head = 0; head < a->query_heads; head++) {
                element *query = (element *)a->query + token * a->query_stride + head * a->head_dim;
                rotate(a, query, token, query);
            }
    }
}

typedef struct {
    float query[MOST_ROWS][MOST_HEAD_DIM];         /* words */
    float output[MOST_ROWS][MOST_HEAD_DIM];        /* float32 sums */
    float scores[MOST_ROWS][CHUNK_UNITS * UNIT];   /* then probabilities, as words */
    float most[MOST_ROWS];
    float sum[MOST_ROWS];
} __attribute__((aligned(64))) workspace;

/* scores[row][unit] = query . key, for `rows` rows and one unit. */
INLINE void score_rows(workspace *w, int row, const int rows, const float *keys, int64_t words, int column, float scale) {
    vfloat sums[ROWS][UNIT_VECTORS];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int j = 0; j < UNIT_VECTORS; j++) sums[i][j] = splat(0);
    for (int64_t d = 0; d < words; d++) {
        vfloat key[UNIT_VECTORS];
#pragma GCC unroll 2
        for (int j = 0; j < UNIT_VECTORS; j++) key[j] = load(keys + d * UNIT + j * LANES);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            vfloat query = splat_word(&w->query[row + i][d]);
#pragma GCC unroll 2
            for (int j = 0; j < UNIT_VECTORS; j++) sums[i][j] = multiply_add(sums[i][j], key[j], query);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int j = 0; j < UNIT_VECTORS; j++)
            store(&w->scores[row + i][column + j * LANES], sums[i][j] * splat(scale));
}

/* output[row] += probabilities[row] . values, for `rows` rows, one unit and `vectors` vectors of the head. */
INLINE void weigh_rows(workspace *w, int row, const int rows, const int vectors, const float *values, int64_t dim, int column) {
    for (int64_t d = 0; d < dim; d += vectors * LANES) {
        vfloat sums[ROWS][2];
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
            for (int j = 0; j < vectors; j++) sums[i][j] = load(&w->output[row + i][d + j * LANES]);
        for (int t = 0; t < UNIT / PAIR; t++) {
            vfloat value[2];
#pragma GCC unroll 2
            for (int j = 0; j < vectors; j++) value[j] = load(values + t * dim + d + j * LANES);
#pragma GCC unroll 8
            for (int i = 0; i < rows; i++) {
                vfloat weight = splat_word(&w->scores[row + i][column / PAIR + t]);
#pragma GCC unroll 2
                for (int j = 0; j < vectors; j++) sums[i][j] = multiply_add(sums[i][j], value[j], weight);
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
            for (int j = 0; j < vectors; j++) store(&w->output[row + i][d + j * LANES], sums[i][j]);
    }
}

/* Call `kernel(row, count, ...)` with a constant count, so that its sums stay in registers. */
#define FOR_ROW_TILES(total, kernel, ...)                            \
    for (int row_ = 0; row_ < (total);) {                            \
        int left_ = (total)-row_;                                    \
        switch (left_ > ROWS ? (left_ < 2 * ROWS ? (left_ + 1) / 2 : ROWS) : left_) { \
            case 1: kernel(w, row_, 1, __VA_ARGS__); row_ += 1; break; \
            case 2: kernel(w, row_, 2, __VA_ARGS__); row_ += 2; break; \
            case 3: kernel(w, row_, 3, __VA_ARGS__); row_ += 3; break; \
            case 4: kernel(w, row_, 4, __VA_ARGS__); row_ += 4; break; \
            case 5: kernel(w, row_, 5, __VA_ARGS__); row_ += 5; break; \
            default: kernel(w, row_, 6, __VA_ARGS__); row_ += 6; break; \
        }                                                            \
    }

static void score_unit(workspace *w, int rows, const float *keys, int64_t words, int column, float scale) {
    FOR_ROW_TILES(rows, score_rows, keys, words, column, scale)
}

static void weigh_unit(workspace *w, int rows, const float *values, int64_t dim, int column) {
    if (dim % (2 * LANES) == 0) {
        FOR_ROW_TILES(rows, weigh_rows, 2, values, dim, column)
    } else {
        FOR_ROW_TILES(rows, weigh_rows, 1, values, dim, column)
    }
}

/* Turn one row's scores of a chunk into probabilities; positions after `last` within the chunk weigh exactly zero. */
static void soften(workspace *w, int row, int columns, int64_t last, int64_t dim) {
    float *scores = w->scores[row];
    const vint lanes = lane_numbers();
    vfloat most = splat(HIDDEN_SCORE);
    for (int c = 0; c < columns; c += LANES) {
        vint visible = lanes + c <= (int32_t)last;
        most = largest(most, choose(visible, load(scores + c), splat(HIDDEN_SCORE)));
    }
    float new_most = largest_of(most);
    if (new_most < w->most[row]) new_most = w->most[row];
    vfloat sum = splat(0);
    for (int c = 0; c < columns; c += LANES) {
        vint visible = lanes + c <= (int32_t)last;
        vfloat weight = masked(visible, exponential(load(scores + c) - splat(new_most)));
        sum += weight;
        store_elements((element *)scores + c, weight);
    }
    float decay = exponential(splat(w->most[row] - new_most))[0];
    w->sum[row] = w->sum[row] * decay + sum_of(sum);
    w->most[row] = new_most;
    for (int64_t d = 0; d < dim; d += LANES) store(&w->output[row][d], load(&w->output[row][d]) * splat(decay));
}

static void attend_item(const attention_arguments *a, workspace *w, const int32_t *item, int64_t kv_head) {
    const int32_t *table = a->tables + item[0] * a->table_stride;
    const int64_t first_row = item[1], tokens = item[2], first_position = item[3];
    const int64_t group = a->query_heads / a->kv_heads, dim = a->head_dim, words = dim / PAIR;
    const int rows = (int)(tokens * group);
    for (int row = 0; row < rows; row++) {
        const element *query = (const element *)a->query + (first_row + row / group) * a->query_stride +
                               (kv_head * group + row % group) * dim;
        memcpy(w->query[row], query, dim * sizeof(element));
        for (int64_t d = 0; d < dim; d += LANES) store(&w->output[row][d], splat(0));
        w->most[row] = HIDDEN_SCORE;
        w->sum[row] = 0;
    }
    const int64_t last_position = first_position + tokens - 1, units = last_position / UNIT + 1;
    for (int64_t begin = 0; begin < units; begin += CHUNK_UNITS) {
        int count = (int)(units - begin < CHUNK_UNITS ? units - begin : CHUNK_UNITS);
        for (int u = 0; u < count; u++) {
            const float *keys = (const float *)a->keys + unit_offset(a, table, kv_head, begin + u);
            score_unit(w, rows, keys, words, u * UNIT, (float)a->scale);
        }
        for (int row = 0; row < rows; row++)
            soften(w, row, count * UNIT, first_position + row / group - begin * UNIT, dim);
        for (int u = 0; u < count; u++) {
            const float *values = (const float *)a->values + unit_offset(a, table, kv_head, begin + u);
            weigh_unit(w, rows, values, dim, u * UNIT);
        }
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
