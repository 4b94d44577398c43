/* The rotation of values in a packed cache, and back: it is its own inverse. */
#pragma once
#include "vector.h"

/* The butterfly of lanes that are `distance` apart: the lower gets the sum, the upper the difference. */
INLINE vfloat turn_lanes(vfloat v, const int distance) {
    vint lanes = lane_numbers();
    vfloat other = __builtin_shuffle(v, lanes ^ distance);
    return other + choose((lanes & distance) != 0, -v, v);
}

/* Rotate `size` numbers in runs of the largest power of two that divides it, which is LANES or more. */
static void turn(float *numbers, int64_t size) {
    const int64_t run = size & -size;
    const vfloat scale = splat(1.0f / __builtin_sqrtf((float)run));
    for (int64_t i = 0; i < size; i += LANES) {
        vfloat v = load(numbers + i) * scale;
#pragma GCC unroll 4
        for (int distance = 1; distance < LANES; distance *= 2) v = turn_lanes(v, distance);
        store(numbers + i, v);
    }
    for (int64_t distance = LANES; distance < run; distance *= 2)
        for (int64_t start = 0; start < size; start += 2 * distance)
            for (int64_t i = start; i < start + distance; i += LANES) {
                vfloat low = load(numbers + i), high = load(numbers + i + distance);
                store(numbers + i, low + high);
                store(numbers + i + distance, low - high);
            }
}
