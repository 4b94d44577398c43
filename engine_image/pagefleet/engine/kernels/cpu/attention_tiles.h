/* The two products of attention, in tiles of a few rows and vectors whose sums stay in registers. */
#pragma once
#include "attention_workspace.h"

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
