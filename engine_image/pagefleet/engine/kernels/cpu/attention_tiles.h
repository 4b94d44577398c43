/* The two products of attention, in tiles of a few rows and vectors whose sums stay in registers.
 *
 * Keys and values are read as words and multiplied by factors, which are queries or weights. Every sum is over one word
 * after another, whatever the tile. */
#pragma once
#include "attention_store.h"
#include "packed_codes.h"

#define CHUNK_UNITS 16 /* units between two rescalings */
#define MOST_ROWS 64   /* query tokens of an item x query heads of a group */
#define UNIT_VECTORS (UNIT / LANES)
#define TILE_VECTORS 4
#define VECTORS(rows) ((rows) <= 3 ? TILE_VECTORS : PANEL_VECTORS) /* 8 sums and more hide a multiply-add's latency */
#define NEAR_NUMBERS (UNIT * MOST_HEAD_DIM) /* of keys or values that all rows pass before the next: half of 32 KiB */
#define UNITS_AHEAD 4                       /* how long before they are read units are asked of memory */
/* Floats between two rows. A multiple of 1,024 bytes would put the rows into few sets of the first-level cache. */
#define ROW_STRIDE (CHUNK_UNITS * UNIT + 16)

#if PARTS == 2 /* all first parts of a unit before the second */
INLINE void store_factors(float *factors, int64_t index, vfloat value) { store(factors + index, value); }
INLINE vfloat load_factors(const float *factors, int64_t index) { return load(factors + index); }
#else
INLINE void store_factors(float *factors, int64_t index, vfloat value) {
    store_elements((element *)factors + index, value);
}
INLINE vfloat load_factors(const float *factors, int64_t index) {
    return load_elements((const element *)factors + index);
}
#endif

typedef enum {
    STORED,  /* words as they are stored */
    UNPACKED, /* each part is a word of its own, the parts of a word one after the other */
    CODES_3 = 3, /* of a packed cache, that many bits each; factors are float32 */
    CODES_4 = 4,
    CODES_8 = 8,
    CODES_AS_FLOATS = 32
} word_form;

typedef struct {
    float query[MOST_ROWS][ROW_STRIDE];  /* factors */
    float output[MOST_ROWS][ROW_STRIDE]; /* float32 sums */
    float scores[MOST_ROWS][ROW_STRIDE]; /* then weights, as factors */
    float code_factors[MOST_ROWS][ROW_STRIDE]; /* what codes are multiplied by, float32 */
    float unpacked[NEAR_NUMBERS];
    float most[MOST_ROWS];
    float sum[MOST_ROWS];
    float least_scores[MOST_ROWS]; /* of a packed block: what codes of 0 score */
    const float *keys[CHUNK_UNITS + UNITS_AHEAD]; /* the units of this chunk, and what is read after them */
    const float *values[CHUNK_UNITS + UNITS_AHEAD];
    const float *near[CHUNK_UNITS]; /* those that are multiplied now, in their form */
} __attribute__((aligned(64))) workspace;

INLINE vfloat load_part(const void *words, const int part, const word_form form) {
    if (form == CODES_3 || form == CODES_4 || form == CODES_8) return load_codes(words, form);
    return form == STORED ? part_of(load(words), part) : load(words);
}

INLINE vfloat add_word(vfloat sum, vfloat word, vfloat factor, const word_form form) {
    return form >= CODES_3 ? sum + word * factor : add_product(sum, word, factor);
}

/* sums[row][vector] += part of words[vector] x the row's factor; the counts are constants. */
INLINE void add_words(vfloat sums[][TILE_VECTORS], const int rows, const int vectors, const void *const *words,
                      const float *factors, const int part, const word_form form) {
    if (rows > vectors) { /* the fewer of the two wait in registers */
        vfloat word[TILE_VECTORS];
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) word[j] = load_part(words[j], part, form);
#pragma GCC unroll 6
        for (int i = 0; i < rows; i++) {
            vfloat factor = splat_word(factors + i * ROW_STRIDE);
#pragma GCC unroll 4
            for (int j = 0; j < vectors; j++) sums[i][j] = add_word(sums[i][j], word[j], factor, form);
        }
    } else {
        vfloat factor[ROWS];
#pragma GCC unroll 6
        for (int i = 0; i < rows; i++) factor[i] = splat_word(factors + i * ROW_STRIDE);
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) {
            vfloat word = load_part(words[j], part, form);
#pragma GCC unroll 6
            for (int i = 0; i < rows; i++) sums[i][j] = add_word(sums[i][j], word, factor[i], form);
        }
    }
}

/* scores[row][unit] = scale * query . key, for `rows` rows and `units` units; both are constants. */
INLINE void score_tile(workspace *w, int row, const int rows, int unit, const int units, const word_form form,
                       int64_t words, float scale) {
    const int vectors = units * UNIT_VECTORS;
    vfloat sums[ROWS][TILE_VECTORS];
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) sums[i][j] = splat(0);
#pragma GCC unroll 2
    for (int part = 0; part < PARTS; part++)
        for (int64_t d = 0; d < words; d++) {
            int64_t line = (form == STORED ? d : d * PARTS + part) * UNIT;
            const void *keys[TILE_VECTORS];
#pragma GCC unroll 4
            for (int j = 0; j < vectors; j++)
                keys[j] = w->near[unit + j / UNIT_VECTORS] + line + j % UNIT_VECTORS * LANES;
            if (form == STORED && part == 0 && row == 0)
                for (int u = 0; u < units; u++) __builtin_prefetch(w->keys[unit + u + UNITS_AHEAD] + line);
            add_words(sums, rows, vectors, keys, &w->query[row][d * PARTS + part], part, form);
        }
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++)
            store(&w->scores[row + i][unit * UNIT + j * LANES], sums[i][j] * splat(scale));
}

/* output[row] += weights[row] . values of the near units, for `rows` rows and `vectors` vectors from `d`: constants. */
INLINE void weigh_tile(workspace *w, int row, const int rows, int begin, int end, const word_form form, int64_t dim,
                       int64_t d, const int vectors) {
    vfloat sums[ROWS][TILE_VECTORS];
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) sums[i][j] = load(&w->output[row + i][d + j * LANES]);
    for (int unit = begin; unit < end; unit++)
#pragma GCC unroll 2
        for (int part = 0; part < PARTS; part++)
            for (int t = 0; t < UNIT / PAIR; t++) {
                int64_t line = (form == STORED ? t : t * PARTS + part) * dim + d;
                const void *values[TILE_VECTORS];
#pragma GCC unroll 4
                for (int j = 0; j < vectors; j++) values[j] = w->near[unit] + line + j * LANES;
                if (form == STORED && part == 0 && row == 0)
                    for (int j = 0; j < vectors * LANES; j += 16)
                        __builtin_prefetch(w->values[unit + UNITS_AHEAD] + line + j);
                add_words(sums, rows, vectors, values, &w->scores[row][(unit * (UNIT / PAIR) + t) * PARTS + part],
                          part, form);
            }
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) store(&w->output[row + i][d + j * LANES], sums[i][j]);
}

INLINE void score_some_rows(workspace *w, int row, const int rows, int begin, int end, const word_form form,
                            int64_t words, float scale) {
    const int units = VECTORS(rows) / UNIT_VECTORS;
    int unit = begin;
    for (; unit + units <= end; unit += units) score_tile(w, row, rows, unit, units, form, words, scale);
    for (; unit < end; unit++) score_tile(w, row, rows, unit, 1, form, words, scale);
}

INLINE void weigh_some_rows(workspace *w, int row, const int rows, int begin, int end, const word_form form,
                            int64_t dim) {
    const int vectors = VECTORS(rows);
    int64_t d = 0;
    for (; d + vectors * LANES <= dim; d += vectors * LANES)
        weigh_tile(w, row, rows, begin, end, form, dim, d, vectors);
    for (; d < dim; d += LANES) weigh_tile(w, row, rows, begin, end, form, dim, d, 1);
}

/* Call `kernel(w, row, count, ...)` with a constant count for all rows: as many at once as sums fit into registers. */
#define FOR_ROW_TILES(total, kernel, ...)                                       \
    for (int row_ = 0; row_ < (total);) {                                       \
        int left_ = (total)-row_;                                               \
        int tile_ = left_ > ROWS && left_ < 2 * ROWS ? (left_ + 1) / 2 : left_; \
        switch (tile_) {                                                        \
            case 1: kernel(w, row_, 1, __VA_ARGS__); row_ += 1; break;          \
            case 2: kernel(w, row_, 2, __VA_ARGS__); row_ += 2; break;          \
            case 3: kernel(w, row_, 3, __VA_ARGS__); row_ += 3; break;          \
            case 4: kernel(w, row_, 4, __VA_ARGS__); row_ += 4; break;          \
            case 5: kernel(w, row_, 5, __VA_ARGS__); row_ += 5; break;          \
            default: kernel(w, row_, ROWS, __VA_ARGS__); row_ += ROWS; break;   \
        }                                                                       \
    }

/* Unpack a unit whose words lie in lines of `width`. */
INLINE void unpack(float *target, const float *unit, int64_t width, int64_t words) {
    for (int64_t line = 0; line < words; line += width)
        for (int64_t i = 0; i < width; i += LANES)
            for (int part = 0; part < PARTS; part++)
                store(target + line * PARTS + part * width + i, part_of(load(unit + line + i), part));
}

/* Make the units `begin` to `end` the near ones. Unpacking pays when two tiles or more use what comes of it; sums are
 * in the same order either way. */
INLINE word_form bring_near(workspace *w, const float *const *units, int begin, int end, int rows, int64_t width,
                            int64_t dim) {
    const word_form form = PARTS > 1 && rows > ROWS ? UNPACKED : STORED;
    for (int unit = begin; unit < end; unit++) {
        float *unpacked = w->unpacked + (unit - begin) * UNIT * dim;
        if (form == UNPACKED) unpack(unpacked, units[unit], width, UNIT * dim / PAIR);
        w->near[unit] = form == UNPACKED ? unpacked : units[unit];
    }
    return form;
}

static void score_rows(workspace *w, int rows, int begin, int end, int64_t dim, float scale) {
    const int step = NEAR_NUMBERS / (UNIT * (int)dim);
    for (int unit = begin; unit < end; unit += step) {
        int stop = unit + step < end ? unit + step : end;
        if (bring_near(w, w->keys, unit, stop, rows, UNIT, dim) == STORED) {
            FOR_ROW_TILES(rows, score_some_rows, unit, stop, STORED, dim / PAIR, scale)
        } else {
            FOR_ROW_TILES(rows, score_some_rows, unit, stop, UNPACKED, dim / PAIR, scale)
        }
    }
}

static void weigh_rows(workspace *w, int rows, int begin, int end, int64_t dim) {
    const int step = NEAR_NUMBERS / (UNIT * (int)dim);
    for (int unit = begin; unit < end; unit += step) {
        int stop = unit + step < end ? unit + step : end;
        if (bring_near(w, w->values, unit, stop, rows, dim, dim) == STORED) {
            FOR_ROW_TILES(rows, weigh_some_rows, unit, stop, STORED, dim)
        } else {
            FOR_ROW_TILES(rows, weigh_some_rows, unit, stop, UNPACKED, dim)
        }
    }
}
