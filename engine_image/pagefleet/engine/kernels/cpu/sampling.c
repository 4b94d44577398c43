/* Choose tokens from float32 logits, row by row, without a sort: `sampler.py` in C, with the same numbers. */
#include "arguments.h"
#include "vector.h"
#include <math.h>
#include <stdlib.h>

#define BLOCK 256 /* weights of one partial sum */

#define STRETCH 1024 /* logits that are searched at once */
#define CHAINS 4      /* a comparison takes as long as four of them that do not wait for each other */

/* The largest of [begin, end); sets `is_number` to false where any is not a number. */
static float largest_between(const float *row, int64_t begin, int64_t end, int *is_number) {
    vint numbers[CHAINS];
    vfloat most[CHAINS];
    for (int j = 0; j < CHAINS; j++) {
        numbers[j] = splat(0) == splat(0);
        most[j] = splat(-INFINITY);
    }
    int64_t i = begin;
    for (; i + CHAINS * LANES <= end; i += CHAINS * LANES)
#pragma GCC unroll 4
        for (int j = 0; j < CHAINS; j++) {
            vfloat value = load(row + i + j * LANES);
            numbers[j] &= value == value;
            most[j] = largest(value, most[j]);
        }
    for (int j = 1; j < CHAINS; j++) {
        numbers[0] &= numbers[j];
        most[0] = largest(most[0], most[j]);
    }
    for (int lane = 0; lane < LANES; lane++) *is_number &= numbers[0][lane] != 0;
    float best = largest_of(most[0]);
    for (; i < end; i++) {
        *is_number &= row[i] == row[i];
        best = row[i] > best ? row[i] : best;
    }
    return best;
}

/* The first index of the largest logit; -1 when it is not finite or any logit is not a number. */
static int64_t row_argmax(const float *row, int64_t width) {
    float best = -INFINITY;
    int64_t index = 0;
    int is_number = 1;
    for (int64_t begin = 0; begin < width; begin += STRETCH) {
        int64_t end = begin + STRETCH < width ? begin + STRETCH : width;
        float most = largest_between(row, begin, end, &is_number);
        if (most > best) {
            best = most;
            index = begin;
        }
    }
    if (!is_number || !isfinite(best)) return -1;
    while (row[index] != best) index++;
    return index;
}

EXPORT void argmax_float32(const sampling_arguments *a) {
#pragma omp parallel for schedule(static) if (a->rows > 1)
    for (int64_t row = 0; row < a->rows; row++) a->tokens[row] = row_argmax(a->logits + row * a->width, a->width);
}

/* A number in [0, 1) that depends on nothing but the arguments (SplitMix64's finaliser). */
static double uniform(uint64_t seed, uint64_t position, uint64_t attempt) {
    const uint64_t values[3] = {seed, position, attempt};
    uint64_t state = 0;
    for (int i = 0; i < 3; i++) {
        state = (state ^ values[i]) + 0x9E3779B97F4A7C15u;
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9u;
        state = (state ^ state >> 27) * 0x94D049BB133111EBu;
        state ^= state >> 31;
    }
    return (double)(state >> 11) / 9007199254740992.0;
}

/* The sum of the weights in [begin, end) that exceed `floor`. */
static double sum_above(const float *weights, int64_t begin, int64_t end, float floor) {
    vdouble sums = (vdouble){0};
    int64_t i = begin;
    for (; i + LANES <= end; i += LANES) {
        vfloat value = load(weights + i);
        sums += __builtin_convertvector(masked(value > splat(floor), value), vdouble);
    }
    double sum = 0;
    for (int lane = 0; lane < LANES; lane++) sum += sums[lane];
    for (; i < end; i++) sum += weights[i] > floor ? weights[i] : 0;
    return sum;
}

static double block_sum_above(const float *weights, int64_t block, int64_t width, float floor) {
    int64_t begin = block * BLOCK, end = begin + BLOCK < width ? begin + BLOCK : width;
    return sum_above(weights, begin, end, floor);
}

/* The first token at which the running sum of the weights above `floor` exceeds a share of their total. */
static int64_t inverse_cdf(const float *weights, int64_t width, float floor, double share) {
    const int64_t blocks = (width + BLOCK - 1) / BLOCK;
    double total = 0;
    for (int64_t block = 0; block < blocks; block++) total += block_sum_above(weights, block, width, floor);
    double target = total * share, before = 0;
    for (int64_t block = 0; block < blocks; block++) {
        double sum = block_sum_above(weights, block, width, floor);
        if (before + sum > target)
            for (int64_t i = block * BLOCK; i < width && i < (block + 1) * BLOCK; i++) {
                before += weights[i] > floor ? weights[i] : 0;
                if (before > target && weights[i] > floor) return i;
            }
        else
            before += sum;
    }
    /* Rounding carried the target to the total: the likeliest is meant, which always has weight. */
    return row_argmax(weights, width);
}

static void sift_down(float *heap, int64_t count, int64_t at) {
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= count) return;
        if (child + 1 < count && heap[child + 1] < heap[child]) child++;
        if (heap[at] <= heap[child]) return;
        float value = heap[at];
        heap[at] = heap[child];
        heap[child] = value;
        at = child;
    }
}

/* Zero what is less likely than the k-th; ties with it stay. A heap holds the k largest, the least of them on top. */
static void keep_top_k(float *weights, int64_t width, int64_t k) {
    float *heap = malloc((size_t)k * sizeof(float));
    if (!heap) abort();
    memcpy(heap, weights, (size_t)k * sizeof(float));
    for (int64_t i = k / 2; i >= 0; i--) sift_down(heap, k, i);
    for (int64_t i = k; i < width; i++)
        if (weights[i] > heap[0]) {
            heap[0] = weights[i];
            sift_down(heap, k, 0);
        }
    for (int64_t i = 0; i < width; i++) weights[i] = weights[i] < heap[0] ? 0 : weights[i];
    free(heap);
}

/* Turn logits into weights, of which the best is 1; what is less than `min_p` of it is zero. */
static void soften_row(float *row, int64_t width, float temperature, float min_p) {
    int is_number = 1; /* what is not a number weighs nothing */
    const float best = largest_between(row, 0, width, &is_number);
    for (int64_t i = 0; i < width; i += LANES) {
        float tail[LANES];
        int64_t count = width - i < LANES ? width - i : LANES;
        float *place = count < LANES ? tail : row + i;
        if (count < LANES) {
            for (int lane = 0; lane < LANES; lane++) tail[lane] = lane < count ? row[i + lane] : best;
        }
        vfloat scaled = (load(place) - splat(best)) / splat(temperature);
        vfloat weight = masked(scaled >= splat(-87.0f), exponential(scaled));
        store(place, masked(weight >= splat(min_p), weight));
        if (count < LANES) memcpy(row + i, tail, (size_t)count * sizeof(float));
    }
}

static int64_t draw_row(const sampling_arguments *a, int64_t row) {
    float *weights = a->logits + row * a->width;
    soften_row(weights, a->width, a->temperatures[row], a->min_ps[row]);
    if (a->top_ks[row] > 0 && a->top_ks[row] < a->width) keep_top_k(weights, a->width, a->top_ks[row]);
    const double nucleus = a->top_ps[row] * sum_above(weights, 0, a->width, 0);
    float pivot = 0;
    for (uint64_t attempt = 0;; attempt++) {
        double share = uniform(a->seeds[row], (uint64_t)a->positions[row], attempt);
        int64_t token = inverse_cdf(weights, a->width, pivot, share);
        if (sum_above(weights, 0, a->width, weights[token]) < nucleus) return token;
        pivot = weights[token];
    }
}

EXPORT void draw_float32(const sampling_arguments *a) {
#pragma omp parallel for schedule(dynamic) if (a->rows > 1)
    for (int64_t row = 0; row < a->rows; row++) a->tokens[row] = draw_row(a, row);
}
