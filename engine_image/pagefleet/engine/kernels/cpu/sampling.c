/* Choose tokens from float32 logits, row by row, without a sort: `sampler.py` in C, with the same numbers. */
#include "arguments.h"
#include "vector.h"
#include <math.h>

#define BLOCK 256 /* weights of one partial sum */

static float row_largest(const float *row, int64_t width) {
    vfloat most = splat(-INFINITY);
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) most = largest(load(row + i), most);
    float best = largest_of(most);
    for (; i < width; i++) best = row[i] > best ? row[i] : best;
    return best;
}

/* The first index of the largest logit; -1 when it is not finite or any logit is not a number. */
static int64_t row_argmax(const float *row, int64_t width) {
    vint is_number = (vint)(splat(0) == splat(0));
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) {
        vfloat value = load(row + i);
        is_number &= value == value;
    }
    for (int lane = 0; lane < LANES; lane++)
        if (!is_number[lane]) return -1;
    for (; i < width; i++)
        if (row[i] != row[i]) return -1;
    float best = row_largest(row, width);
    if (!isfinite(best)) return -1;
    for (i = 0; i + LANES <= width; i += LANES) {
        vint found = load(row + i) == splat(best);
        for (int lane = 0; lane < LANES; lane++)
            if (found[lane]) return i + lane;
    }
    for (; i < width; i++)
        if (row[i] == best) return i;
    return -1;
}

EXPORT void argmax_float32(const sampling_arguments *a) {
#pragma omp parallel for schedule(static) if (a->rows > 1)
    for (int64_t row = 0; row < a->rows; row++) a->tokens[row] = row_argmax(a->logits + row * a->width, a->width);
}
