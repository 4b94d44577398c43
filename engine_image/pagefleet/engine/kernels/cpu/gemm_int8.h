/* output = input . weight over 8-bit integers, exact: rows are rounded token by token, weights output by output.
 *
 * A word holds GROUP numbers that are neighbours along the depth. Both levels sum the same integers, so they give the
 * same bits. A row with a number that is not finite has a scale that is not, and so have all its outputs. */
#include <math.h>

#define STEPS 254.0f /* one less than 255: both ends of a row's range may be rounded outwards */

#if defined(__AVX512VNNI__) || defined(EMULATE_AVX512)

#define GROUP 4 /* u8 x s8 in one instruction: rows are shifted to begin at 0, which sums of weights take back */
#define IS_SHIFTED 1
typedef uint8_t quantized;
typedef uint8_t vquantized __attribute__((vector_size(LANES), aligned(1), may_alias));

INLINE vfloat load_group(const void *address) { return load(address); }

INLINE vfloat add_group(vfloat sum, vfloat weight, vfloat input) {
#if defined(__AVX512VNNI__)
    return (vfloat)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)input, (__m512i)weight);
#else
    vint sums = (vint)sum;
    for (int i = 0; i < LANES * GROUP; i++) sums[i / GROUP] += ((const uint8_t *)&input)[i] * ((const int8_t *)&weight)[i];
    return (vfloat)sums;
#endif
}

#else

#define GROUP 2 /* s16 x s16: u8 x s8 would saturate */
#define IS_SHIFTED 0
typedef int16_t quantized;
typedef int16_t vquantized __attribute__((vector_size(LANES * 2), aligned(2), may_alias));

INLINE vfloat load_group(const void *address) { /* by intrinsics: gcc widens a generic vector in four steps */
#if defined(__AVX512BW__)
    return (vfloat)_mm512_cvtepi8_epi16(_mm256_loadu_si256(address));
#else
    return (vfloat)_mm256_cvtepi8_epi16(_mm_loadu_si128(address));
#endif
}

INLINE vfloat add_group(vfloat sum, vfloat weight, vfloat input) {
#if defined(__AVX512BW__)
    vint products = (vint)_mm512_madd_epi16((__m512i)weight, (__m512i)input);
#else
    vint products = (vint)_mm256_madd_epi16((__m256i)weight, (__m256i)input);
#endif
    return (vfloat)((vint)sum + products);
}

#endif

/* Return the width of the range that holds a row and 0, or a number that is not finite where the row has one. */
INLINE float row_range(const element *row, int64_t width, float *below) {
    vfloat most = splat(0), least = splat(0), rest = splat(0);
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) {
        vfloat value = load_elements(row + i);
        most = largest(value, most);
        least = largest(-value, least);
        rest += value - value; /* 0, or not a number for good */
    }
    float above = largest_of(most), remainder = sum_of(rest);
    *below = largest_of(least);
    for (; i < width; i++) {
        float value = load_element(row + i);
        above = value > above ? value : above;
        *below = -value > *below ? -value : *below;
        remainder += value - value;
    }
    return above + *below + remainder;
}

/* Round a row to STEPS + 1 neighbouring integers that include 0, times its scale, which is returned. */
static float quantize_row(const element *row, int64_t width, int64_t words, quantized *result, float *zero) {
    float below;
    const float range = row_range(row, width, &below);
    const float inverse = range > 0 && isfinite(range) ? STEPS / range : 0;
    const int32_t shift = IS_SHIFTED && inverse > 0 ? (int32_t)__builtin_rintf(below * inverse) : 0;
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) {
        vint integers = nearest(load_elements(row + i) * splat(inverse));
        *(vquantized *)(result + i) = __builtin_convertvector(integers + shift, vquantized);
    }
    for (; i < width; i++) result[i] = (quantized)((int32_t)__builtin_rintf(load_element(row + i) * inverse) + shift);
    for (; i < words * GROUP; i++) result[i] = 0; /* the weight has zeros there */
    *zero = (float)shift;
    return range / STEPS;
}

INLINE input_rows quantized_rows(const gemm_arguments *a, int64_t begin, int64_t end, float *space) {
    float *scales = space, *zeros = scales + (end - begin), *words = zeros + (end - begin);
    for (int64_t row = 0; row < end - begin; row++)
        scales[row] = quantize_row((const element *)a->input + (begin + row) * a->input_stride, a->inputs, a->words,
                                   (quantized *)(words + row * a->words), &zeros[row]);
    return (input_rows){(const char *)(words - begin * a->words), a->words * (int64_t)sizeof(float), scales - begin, zeros - begin};
}

/* Turn integer sums into what they stand for. */
static __attribute__((noinline)) void write_scaled(const gemm_arguments *a, float scale, int32_t zero, int64_t row, int64_t panel,
                                                   float *sums) {
    for (int j = 0; j < COLUMNS; j += LANES) {
        vint sum = (vint)load(sums + j);
        if (IS_SHIFTED) sum -= (vint)load(a->weight_sums + panel * COLUMNS + j) * zero;
        store(sums + j, __builtin_convertvector(sum, vfloat) * (load(a->weight_scales + panel * COLUMNS + j) * splat(scale)));
    }
    write_panel(a, row, panel, sums);
}

#define TILES(name) name##_int8
#define PASSES(a) 1
#define END_PASS(a, in, row, panel, pass, column, target, sum) store(target, sum)
#define WEIGHT_BYTES GROUP
#define INPUT_PARTS 1
#define LOAD_WEIGHT(address, part) ((void)(part), load_group(address))
#define ADD_PRODUCT(sum, weight, input) add_group(sum, weight, input)
#define INPUT_SPACE(a, rows) ((rows) * ((a)->words + 2))
#define INPUT_ROWS(a, begin, end, space) quantized_rows(a, begin, end, space)
#define WRITE(a, in, row, panel, sums) write_scaled(a, (in)->scales[row], (int32_t)(in)->zeros[row], row, panel, sums)
#include "tiles.h"

EXPORT void NAME(multiply_int8)(const gemm_arguments *a) { multiply_all_int8(a); }
