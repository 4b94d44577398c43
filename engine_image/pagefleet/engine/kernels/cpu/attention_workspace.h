/* What one thread attends with, and the innermost step of all its products.
 *
 * Keys and values are read as words or codes and multiplied by factors, which are queries or weights. Every sum is over
 * one word after another, whatever the tile. */
#pragma once
#include "element.h"
#include "packed_codes.h"

#define UNIT 16 /* tokens that are stored together */
#define MOST_HEAD_DIM 256
#define CHUNK_UNITS 16 /* units between two rescalings */
#define MOST_ROWS 64   /* query tokens of an item x query heads of a group */
#define UNIT_VECTORS (UNIT / LANES)
#define TILE_VECTORS 4
#define VECTORS(rows) ((rows) <= 3 ? TILE_VECTORS : PANEL_VECTORS) /* 8 sums and more hide a multiply-add's latency */
#define NEAR_NUMBERS (UNIT * MOST_HEAD_DIM) /* of keys or values that all rows pass before the next: half of 32 KiB */
#define UNITS_AHEAD 4                       /* how long before they are read units are asked of memory */
/* Floats between two rows. A multiple of 1,024 bytes would put the rows into few sets of the first-level cache. */
#define ROW_STRIDE (CHUNK_UNITS * UNIT + 16)

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
