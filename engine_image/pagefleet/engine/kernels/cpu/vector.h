/* Vectors as wide as the level's registers. Everything else is written in terms of these few functions. */
#pragma once
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) || defined(EMULATE_AVX512) /* tests run the wide code on narrow registers, slowly */
#define LANES 16
#define PANEL_VECTORS 4 /* 6 rows x 4 accumulators, 4 weights, 1 input: 29 of 32 registers */
#elif defined(__AVX2__) && defined(__FMA__)
#define LANES 8
#define PANEL_VECTORS 2 /* 6 rows x 2 accumulators, 2 weights, 1 input: 15 of 16 registers */
#else
#error "compile with -march=x86-64-v3 or higher"
#endif

#define COLUMNS (PANEL_VECTORS * LANES) /* outputs of one packed panel */
#define ROWS 6                          /* rows that share a load of the weights */
#define INLINE static inline __attribute__((always_inline))
#define EXPORT __attribute__((visibility("default")))

typedef float vfloat __attribute__((vector_size(LANES * 4)));
typedef float vfloat_unaligned __attribute__((vector_size(LANES * 4), aligned(2), may_alias));
typedef int32_t vint __attribute__((vector_size(LANES * 4)));
typedef uint32_t vword __attribute__((vector_size(LANES * 4)));
typedef double vdouble __attribute__((vector_size(LANES * 8)));

INLINE vfloat load(const void *source) { return *(const vfloat_unaligned *)source; }

INLINE void store(void *target, vfloat value) { *(vfloat_unaligned *)target = value; }

#if defined(__AVX512F__)

INLINE vfloat splat(float x) { return (vfloat)_mm512_set1_ps(x); }
INLINE vfloat largest(vfloat a, vfloat b) { return (vfloat)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE vfloat smallest(vfloat a, vfloat b) { return (vfloat)_mm512_min_ps((__m512)a, (__m512)b); }
INLINE vint nearest(vfloat x) { return (vint)_mm512_cvtps_epi32((__m512)x); }
INLINE vint load_bytes(const uint8_t *bytes) {
    return (vint)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)bytes));
}

#elif LANES == 8

INLINE vfloat splat(float x) { return (vfloat)_mm256_set1_ps(x); }
INLINE vfloat largest(vfloat a, vfloat b) { return (vfloat)_mm256_max_ps((__m256)a, (__m256)b); }
INLINE vfloat smallest(vfloat a, vfloat b) { return (vfloat)_mm256_min_ps((__m256)a, (__m256)b); }
INLINE vint nearest(vfloat x) { return (vint)_mm256_cvtps_epi32((__m256)x); }
INLINE vint load_bytes(const uint8_t *bytes) {
    return (vint)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)bytes));
}

#else /* EMULATE_AVX512: the same meaning lane by lane, the second where one is not a number */

INLINE vfloat splat(float x) { return (vfloat){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }

INLINE vfloat largest(vfloat a, vfloat b) {
    for (int i = 0; i < LANES; i++) b[i] = a[i] > b[i] ? a[i] : b[i];
    return b;
}

INLINE vfloat smallest(vfloat a, vfloat b) {
    for (int i = 0; i < LANES; i++) b[i] = a[i] < b[i] ? a[i] : b[i];
    return b;
}

INLINE vint nearest(vfloat x) {
    vint integers;
    for (int i = 0; i < LANES; i++) integers[i] = (int32_t)__builtin_rintf(x[i]);
    return integers;
}

INLINE vint load_bytes(const uint8_t *bytes) {
    vint integers;
    for (int i = 0; i < LANES; i++) integers[i] = bytes[i];
    return integers;
}

#endif

INLINE vfloat masked(vint mask, vfloat value) { return (vfloat)(mask & (vint)value); }

INLINE vfloat choose(vint mask, vfloat yes, vfloat no) { return (vfloat)((mask & (vint)yes) | (~mask & (vint)no)); }

INLINE vint lane_numbers(void) {
    vint lanes;
    for (int i = 0; i < LANES; i++) lanes[i] = i;
    return lanes;
}

INLINE float sum_of(vfloat v) {
    float sum = 0;
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) v[i] += v[i + width];
    sum = v[0];
    return sum;
}

INLINE float largest_of(vfloat v) {
    float best = v[0];
    for (int i = 1; i < LANES; i++) best = v[i] > best ? v[i] : best;
    return best;
}

/* e^x within 2 units in the last place, exactly 1 at 0, clamped to what float32 holds (Cody-Waite, degree 6). */
INLINE vfloat exponential(vfloat x) {
    const vfloat to_integer = splat(12582912.0f); /* 1.5 * 2^23: adding it leaves the integer in the low bits */
    x = largest(x, splat(-87.0f));
    x = smallest(x, splat(88.0f));
    vfloat shifted = x * splat(1.44269504f) + to_integer;
    vint exponent = (vint)((vword)shifted << 23);
    vfloat n = shifted - to_integer;
    vfloat r = x - n * splat(0.693359375f);
    r = r + n * splat(2.12194440e-4f);
    vfloat p = splat(1.9875691500e-4f);
    p = p * r + splat(1.3981999507e-3f);
    p = p * r + splat(8.3334519073e-3f);
    p = p * r + splat(4.1665795894e-2f);
    p = p * r + splat(1.6666665459e-1f);
    p = p * r + splat(5.0000001201e-1f);
    p = p * (r * r) + r + splat(1.0f);
    return (vfloat)((vint)p + exponent);
}

/* Write x as n + r, n a whole number and r at most a half; return 2^r - 1 (minimax, off by 1e-7 of 2^r), and n where a
 * float32 has its exponent. */
INLINE vfloat split_power_of_two(vfloat x, vint *exponent) {
    const vfloat to_integer = splat(12582912.0f); /* as above */
    vfloat shifted = x + to_integer;
    *exponent = (vint)((vword)shifted << 23);
    vfloat r = x - (shifted - to_integer);
    vfloat p = splat(1.326472731e-3f);
    p = p * r + splat(9.671512991e-3f);
    p = p * r + splat(5.550733581e-2f);
    p = p * r + splat(2.402224243e-1f);
    p = p * r + splat(6.931470037e-1f);
    return p * r;
}

/* 2^x within 2 units in the last place for x up to 127, exactly 1 at 0 and exactly 0 from -127 down. */
INLINE vfloat power_of_two(vfloat x) {
    vint exponent;
    vfloat fraction = split_power_of_two(largest(splat(-127.0f), x), &exponent); /* in this order NaN stays NaN */
    return (vfloat)((vint)(fraction + splat(1.0f)) + exponent);
}

/* tanh x with a relative error below 1e-6: (e^2x - 1) / (e^2x + 1), of which the first is had without cancellation. */
INLINE vfloat hyperbolic_tangent(vfloat x) {
    vint exponent;
    x = largest(splat(-10.0f), smallest(splat(10.0f), x));
    vfloat fraction = split_power_of_two(x * splat(2.88539008f), &exponent);
    vfloat power = (vfloat)(exponent + 0x3f800000);
    vfloat less_one = fraction * power + (power - splat(1.0f));
    return less_one / (less_one + splat(2.0f));
}
