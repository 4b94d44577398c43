/* output = input . weight over 8-bit integers: rows are rounded in groups of neighbouring inputs, weights output by output.
 *
 * A word holds GROUP numbers that are neighbours along the depth. A pass sums one group of inputs, exactly, and its scale
 * comes in at its end. All levels sum the same integers and then floats in the same order. A row with a number that is
 * not finite has a scale that is not, and so have all its outputs. */
#include <math.h>

#define INPUT_GROUP 128 /* inputs that share a scale and an integer that stands for 0, as layers/quantized.py says */

typedef int16_t vshort __attribute__((vector_size(LANES * 2), aligned(2), may_alias));

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

/* Return sums less zero * weight_sums; both fit into 16 bits, whose product is one instruction. */
INLINE vint take_back(vint sums, vint weight_sums, int32_t zero) {
#if defined(__AVX512VNNI__)
    return (vint)_mm512_dpwssd_epi32((__m512i)sums, (__m512i)weight_sums, _mm512_set1_epi32(-zero & 0xffff));
#else
    return sums - weight_sums * zero;
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

INLINE vint take_back(vint sums, vint weight_sums, int32_t zero) {
    (void)weight_sums, (void)zero;
    return sums;
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

/* Round a group of a row to STEPS + 1 neighbouring integers that include 0, times its scale, which is returned. */
static float quantize_group(const element *row, int64_t width, quantized *result, int32_t *zero) {
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
    *zero = shift;
    return range / STEPS;
}

INLINE input_rows quantized_rows(const gemm_arguments *a, int64_t begin, int64_t end, float *space) {
    const int64_t groups = a->groups, count = (end - begin) * groups;
    float *scales = space, *words = space + 2 * count;
    int32_t *zeros = (int32_t *)(space + count);
    for (int64_t row = 0; row < end - begin; row++) {
        const element *input = (const element *)a->input + (begin + row) * a->input_stride;
        quantized *result = (quantized *)(words + row * a->words);
        for (int64_t i = a->inputs; i < a->words * GROUP; i++) result[i] = 0; /* the weight has zeros there */
        for (int64_t g = 0, first = 0; g < groups; g++, first += INPUT_GROUP) {
            const int64_t width = a->inputs - first < INPUT_GROUP ? a->inputs - first : INPUT_GROUP;
            scales[row * groups + g] = quantize_group(input + first, width, result + first, &zeros[row * groups + g]);
        }
    }
    return (input_rows){(const char *)(words - begin * a->words), a->words * (int64_t)sizeof(float), scales - begin * groups,
                        zeros - begin * groups};
}

/* Add what the integer sums of a group stand for, but for the scales of the weights, to the groups before it. */
INLINE void add_group_sums(const gemm_arguments *a, const input_rows *in, int64_t row, int64_t panel, int64_t group, int column,
                           float *target, vfloat sum) {
    const int64_t place = row * a->groups + group;
    const vshort *weight_sums = (const vshort *)(a->weight_sums + (panel * a->groups + group) * COLUMNS + column);
    const vint integers = take_back((vint)sum, __builtin_convertvector(*weight_sums, vint), in->zeros[place]);
    /* Fused in every tile, so that batches agree. */
    store(target, load(target) + __builtin_convertvector(integers, vfloat) * splat(in->scales[place]));
}

static __attribute__((noinline)) void write_scaled(const gemm_arguments *a, int64_t row, int64_t panel, float *sums) {
    for (int j = 0; j < COLUMNS; j += LANES) store(sums + j, load(sums + j) * load(a->weight_scales + panel * COLUMNS + j));
    write_panel(a, row, panel, sums);
}

#define TILES(name) name##_int8
#define PASSES(a) ((a)->groups)
#define PASS_WORDS(a) ((void)(a), INPUT_GROUP / GROUP)
#define END_PASS(a, in, row, panel, pass, column, target, sum) add_group_sums(a, in, row, panel, pass, column, target, sum)
#define WEIGHT_BYTES GROUP
#define INPUT_PARTS 1
#define LOAD_WEIGHT(address, part) ((void)(part), load_group(address))
#define ADD_PRODUCT(sum, weight, input) add_group(sum, weight, input)
#define INPUT_SPACE(a, rows) ((rows) * ((a)->words + 2 * (a)->groups))
#define INPUT_ROWS(a, begin, end, space) quantized_rows(a, begin, end, space)
#define WRITE(a, in, row, panel, sums) write_scaled(a, row, panel, sums)
#include "tiles.h"

EXPORT void NAME(multiply_int8)(const gemm_arguments *a) { multiply_all_int8(a); }
