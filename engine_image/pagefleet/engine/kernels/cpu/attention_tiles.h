/* The two products of attention, in tiles of a few rows and vectors whose sums stay in registers.
 *
 * Stored keys and values are 32-bit words; what they are multiplied by, queries and weights, are factors: whatever one
 * product takes beside a word. Every sum is over one word after another, whatever the tile. */
#pragma once
#include "attention_store.h"

#define CHUNK_UNITS 16 /* units between two rescalings */
#define MOST_ROWS 64   /* query tokens of an item x query heads of a group */
#define UNIT_VECTORS (UNIT / LANES)
#define TILE_VECTORS 4
#define VECTORS(rows) ((rows) <= 3 ? TILE_VECTORS : PANEL_VECTORS) /* of a tile: 8 sums and more hide the latency */
#define NEAR_WORDS 4096 /* keys or values that all rows pass over before the next: half of a first-level cache */
/* Floats between two rows. A multiple of 1,024 bytes would put the rows into few sets of the first-level cache. */
#define ROW_STRIDE (CHUNK_UNITS * UNIT + 16)

typedef struct {
    float query[MOST_ROWS][ROW_STRIDE];  /* factors */
    float output[MOST_ROWS][ROW_STRIDE]; /* float32 sums */
    float scores[MOST_ROWS][ROW_STRIDE]; /* then weights, as factors */
    float most[MOST_ROWS];
    float sum[MOST_ROWS];
    const float *keys[CHUNK_UNITS]; /* the units of this chunk */
    const float *values[CHUNK_UNITS];
} __attribute__((aligned(64))) workspace;

#if BFLOAT16 && !defined(__AVX512BF16__)

#define FACTORS 2 /* of a word: float32, because unpacking them once is cheaper than in every product */

INLINE void store_factors(float *factors, int64_t index, vfloat value) { store(factors + index, value); }

INLINE vfloat part_of(vfloat word, int part) {
    return part ? (vfloat)((vword)word & 0xffff0000) : (vfloat)((vword)word << 16);
}

INLINE vfloat add_product(vfloat sum, vfloat part, vfloat factor) { return sum + part * factor; }

#else

#define FACTORS 1 /* of a word: a word */

INLINE void store_factors(float *factors, int64_t index, vfloat value) {
    store_elements((element *)factors + index, value);
}

INLINE vfloat part_of(vfloat word, int part) { return (void)part, word; }

INLINE vfloat add_product(vfloat sum, vfloat part, vfloat factor) { return multiply_add(sum, part, factor); }

#endif

/* sums[row][vector] += words[vector] x the row's factors, for one word along the depth. */
INLINE void add_words(vfloat sums[][TILE_VECTORS], const int rows, const int vectors, const float *const *words,
                      const float *factors) {
#pragma GCC unroll 2
    for (int part = 0; part < FACTORS; part++) {
        if (rows > vectors) { /* the fewer of the two wait in registers */
            vfloat word[TILE_VECTORS];
#pragma GCC unroll 4
            for (int j = 0; j < vectors; j++) word[j] = part_of(load(words[j]), part);
#pragma GCC unroll 6
            for (int i = 0; i < rows; i++) {
                vfloat factor = splat_word(factors + i * ROW_STRIDE + part);
#pragma GCC unroll 4
                for (int j = 0; j < vectors; j++) sums[i][j] = add_product(sums[i][j], word[j], factor);
            }
        } else {
            vfloat factor[ROWS];
#pragma GCC unroll 6
            for (int i = 0; i < rows; i++) factor[i] = splat_word(factors + i * ROW_STRIDE + part);
#pragma GCC unroll 4
            for (int j = 0; j < vectors; j++) {
                vfloat word = part_of(load(words[j]), part);
#pragma GCC unroll 6
                for (int i = 0; i < rows; i++) sums[i][j] = add_product(sums[i][j], word, factor[i]);
            }
        }
    }
}

/* scores[row][unit] = scale * query . key, for `rows` rows and `units` units; both are constants. */
INLINE void score_tile(workspace *w, int row, const int rows, int unit, const int units, int64_t words, float scale) {
    const int vectors = units * UNIT_VECTORS;
    vfloat sums[ROWS][TILE_VECTORS];
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) sums[i][j] = splat(0);
    for (int64_t d = 0; d < words; d++) {
        const float *keys[TILE_VECTORS];
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++)
            keys[j] = w->keys[unit + j / UNIT_VECTORS] + d * UNIT + j % UNIT_VECTORS * LANES;
        add_words(sums, rows, vectors, keys, &w->query[row][d * FACTORS]);
    }
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++)
            store(&w->scores[row + i][unit * UNIT + j * LANES], sums[i][j] * splat(scale));
}

/* output[row] += weights[row] . values over some units, for `rows` rows and `vectors` vectors from `d`; both are constants. */
INLINE void weigh_tile(workspace *w, int row, const int rows, int begin, int end, int64_t dim, int64_t d, const int vectors) {
    vfloat sums[ROWS][TILE_VECTORS];
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) sums[i][j] = load(&w->output[row + i][d + j * LANES]);
    for (int unit = begin; unit < end; unit++)
        for (int t = 0; t < UNIT / PAIR; t++) {
            const float *values[TILE_VECTORS];
#pragma GCC unroll 4
            for (int j = 0; j < vectors; j++) values[j] = w->values[unit] + t * dim + d + j * LANES;
            add_words(sums, rows, vectors, values, &w->scores[row][(unit * UNIT / PAIR + t) * FACTORS]);
        }
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) store(&w->output[row + i][d + j * LANES], sums[i][j]);
}

INLINE void score_some_rows(workspace *w, int row, const int rows, int begin, int end, int64_t words, float scale) {
    const int units = VECTORS(rows) / UNIT_VECTORS;
    int unit = begin;
    for (; unit + units <= end; unit += units) score_tile(w, row, rows, unit, units, words, scale);
    for (; unit < end; unit++) score_tile(w, row, rows, unit, 1, words, scale);
}

INLINE void weigh_some_rows(workspace *w, int row, const int rows, int begin, int end, int64_t dim) {
    const int vectors = VECTORS(rows);
    int64_t d = 0;
    for (; d + vectors * LANES <= dim; d += vectors * LANES) weigh_tile(w, row, rows, begin, end, dim, d, vectors);
    for (; d < dim; d += LANES) weigh_tile(w, row, rows, begin, end, dim, d, 1);
}

/* Call `kernel(w, row, count, ...)` with a constant count for all rows: as many at once as sums fit into registers. */
#define FOR_ROW_TILES(total, kernel, ...)                                             \
    for (int row_ = 0; row_ < (total);) {                                             \
        int left_ = (total)-row_;                                                     \
        int tile_ = left_ > ROWS && left_ < 2 * ROWS ? (left_ + 1) / 2 : left_;       \
        switch (tile_) {                                                              \
            case 1: kernel(w, row_, 1, __VA_ARGS__); row_ += 1; break;                \
            case 2: kernel(w, row_, 2, __VA_ARGS__); row_ += 2; break;                \
            case 3: kernel(w, row_, 3, __VA_ARGS__); row_ += 3; break;                \
            case 4: kernel(w, row_, 4, __VA_ARGS__); row_ += 4; break;                \
            case 5: kernel(w, row_, 5, __VA_ARGS__); row_ += 5; break;                \
            default: kernel(w, row_, ROWS, __VA_ARGS__); row_ += ROWS; break;         \
        }                                                                             \
    }

/* How many units stay in the first-level cache while all rows pass over them. */
INLINE int near_units(int64_t words) {
    int64_t units = NEAR_WORDS / (UNIT * words);
    return units < 1 ? 1 : (int)units;
}

static void score_rows(workspace *w, int rows, int begin, int end, int64_t words, float scale) {
    const int step = near_units(words);
    for (int unit = begin; unit < end; unit += step) {
        int stop = unit + step < end ? unit + step : end;
        FOR_ROW_TILES(rows, score_some_rows, unit, stop, words, scale)
    }
}

static void weigh_rows(workspace *w, int rows, int begin, int end, int64_t dim) {
    const int step = near_units(dim / PAIR);
    for (int unit = begin; unit < end; unit += step) {
        int stop = unit + step < end ? unit + step : end;
        FOR_ROW_TILES(rows, weigh_some_rows, unit, stop, dim)
    }
}
