/* The two products of attention over the codes of a packed cache, in float32 in every build.
 *
 * A key is least + scale * code of its channel, so a block's scales go into the queries; a value is scale * code +
 * offset of its token, so scales go into the weights. Codes are then all that is read for every row. */
#define BFLOAT16 0
#include "packed_tiles.h"

#define LINE_BYTES 64 /* that one request brings from memory */

/* scores[row][unit] = scale * (least score + factors . codes), for `rows` rows and `units` units; both are constants. */
INLINE void score_code_tile(workspace *w, int row, const int rows, int unit, const int units, const word_form form,
                            int64_t dim, float scale) {
    const int vectors = units * UNIT_VECTORS;
    vfloat sums[ROWS][TILE_VECTORS];
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) sums[i][j] = splat(0);
    const int channels = form == CODES_AS_FLOATS ? 1 : LINE_BYTES * RUN / (UNIT * form), bytes = UNIT / RUN * form;
    for (int64_t d = 0; d < dim; d += channels) {
        if (form != CODES_AS_FLOATS)
#pragma GCC unroll 4
            for (int u = 0; u < units; u++)
                __builtin_prefetch((const uint8_t *)w->keys[unit + u + UNITS_AHEAD] + d * bytes);
#pragma GCC unroll 8
        for (int c = 0; c < channels; c++) {
            const void *keys[TILE_VECTORS];
#pragma GCC unroll 4
            for (int j = 0; j < vectors; j++)
                keys[j] = (const uint8_t *)w->near[unit + j / UNIT_VECTORS] + (d + c) * bytes +
                          j % UNIT_VECTORS * (LANES / RUN * form);
            add_words(sums, rows, vectors, keys, &w->code_factors[row][d + c], 0, form);
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++)
            store(&w->scores[row + i][unit * UNIT + j * LANES],
                  (sums[i][j] + splat(w->least_scores[row + i])) * splat(scale));
}

/* output[row] += factors[row] . codes of the near units, for `rows` rows and `vectors` vectors from `d`: constants. */
INLINE void weigh_code_tile(workspace *w, int row, const int rows, int begin, int end, const word_form form,
                            int64_t dim, int64_t d, const int vectors) {
    vfloat sums[ROWS][TILE_VECTORS];
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) sums[i][j] = load(&w->output[row + i][d + j * LANES]);
    const int64_t token_bytes = dim / RUN * form, first = d / RUN * form;
    for (int unit = begin; unit < end; unit++) {
        const uint8_t *codes = (const uint8_t *)w->near[unit] + first;
        const uint8_t *ahead = (const uint8_t *)w->values[unit + UNITS_AHEAD] + first;
        const float *factors = &w->code_factors[row][unit * UNIT];
#pragma GCC unroll 4
        for (int t = 0; t < UNIT; t++) {
            const void *values[TILE_VECTORS];
#pragma GCC unroll 4
            for (int j = 0; j < vectors; j++) values[j] = codes + t * token_bytes + j * (LANES / RUN * form);
            if (form != CODES_AS_FLOATS) __builtin_prefetch(ahead + t * token_bytes);
            add_words(sums, rows, vectors, values, factors + t, 0, form);
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) store(&w->output[row + i][d + j * LANES], sums[i][j]);
}

INLINE void score_some_codes(workspace *w, int row, const int rows, int begin, int end, const word_form form,
                             int64_t dim, float scale) {
    const int units = VECTORS(rows) / UNIT_VECTORS;
    int unit = begin;
    for (; unit + units <= end; unit += units) score_code_tile(w, row, rows, unit, units, form, dim, scale);
    for (; unit < end; unit++) score_code_tile(w, row, rows, unit, 1, form, dim, scale);
}

INLINE void weigh_some_codes(workspace *w, int row, const int rows, int begin, int end, const word_form form,
                             int64_t dim) {
    const int vectors = VECTORS(rows);
    int64_t d = 0;
    for (; d + vectors * LANES <= dim; d += vectors * LANES)
        weigh_code_tile(w, row, rows, begin, end, form, dim, d, vectors);
    for (; d < dim; d += LANES) weigh_code_tile(w, row, rows, begin, end, form, dim, d, 1);
}

INLINE void codes_to_floats(float *target, const void *codes, int64_t count, const word_form form) {
    for (int64_t i = 0; i < count; i += LANES) store(target + i, load_codes(run_at(codes, i, form), form));
}

/* Make the units `begin` to `end` the near ones, converted where several tiles use what comes of it. */
INLINE word_form bring_codes_near(workspace *w, const float *const *units, int begin, int end, int rows, int64_t dim,
                                  const word_form form) {
    for (int unit = begin; unit < end; unit++) {
        float *floats = w->unpacked + (unit - begin) * UNIT * dim;
        if (rows > ROWS) codes_to_floats(floats, units[unit], UNIT * dim, form);
        w->near[unit] = rows > ROWS ? floats : units[unit];
    }
    return rows > ROWS ? CODES_AS_FLOATS : form;
}

INLINE void score_codes_as(workspace *w, int rows, int begin, int end, int64_t dim, float scale, const word_form form) {
    const int step = NEAR_NUMBERS / (UNIT * (int)dim);
    for (int unit = begin; unit < end; unit += step) {
        int stop = unit + step < end ? unit + step : end;
        if (bring_codes_near(w, w->keys, unit, stop, rows, dim, form) == form) {
            FOR_ROW_TILES(rows, score_some_codes, unit, stop, form, dim, scale)
        } else {
            FOR_ROW_TILES(rows, score_some_codes, unit, stop, CODES_AS_FLOATS, dim, scale)
        }
    }
}

INLINE void weigh_codes_as(workspace *w, int rows, int begin, int end, int64_t dim, const word_form form) {
    const int step = NEAR_NUMBERS / (UNIT * (int)dim);
    for (int unit = begin; unit < end; unit += step) {
        int stop = unit + step < end ? unit + step : end;
        if (bring_codes_near(w, w->values, unit, stop, rows, dim, form) == form) {
            FOR_ROW_TILES(rows, weigh_some_codes, unit, stop, form, dim)
        } else {
            FOR_ROW_TILES(rows, weigh_some_codes, unit, stop, CODES_AS_FLOATS, dim)
        }
    }
}

void score_codes(workspace *w, int rows, int begin, int end, int64_t dim, float scale, int64_t bits) {
    if (bits == 8) score_codes_as(w, rows, begin, end, dim, scale, CODES_8);
    if (bits == 4) score_codes_as(w, rows, begin, end, dim, scale, CODES_4);
}

void weigh_codes(workspace *w, int rows, int begin, int end, int64_t dim, int64_t bits) {
    if (bits == 8) weigh_codes_as(w, rows, begin, end, dim, CODES_8);
    if (bits == 4) weigh_codes_as(w, rows, begin, end, dim, CODES_4);
    if (bits == 3) weigh_codes_as(w, rows, begin, end, dim, CODES_3);
}
