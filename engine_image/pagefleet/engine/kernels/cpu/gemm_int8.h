/* output = input . weight over 8-bit integers, exact: rows are rounded token by token, weights output by output.
 *
 * A word holds GROUP numbers that are neighbours along the depth. Both levels sum the same integers, so they give the
 * same bits. A row with a number that is not finite has a scale that is not, and so have all its outputs. */
#include <math.h>

#if defined(__AVX512VNNI__)

#define GROUP 4 /* u8 x s8 in one instruction: rows are shifted by 128, which their sums of weights take back */
#define SHIFT 128
typedef uint8_t quantized;
typedef uint8_t vquantized __attribute__((vector_size(LANES), aligned(1), may_alias));

INLINE vfloat load_group(const void *address) { return load(address); }

INLINE vfloat add_group(vfloat sum, vfloat weight, vfloat input) {
    return (vfloat)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)input, (__m512i)weight);
}

#else

#define GROUP 2 /* s16 x s16: u8 x s8 would saturate */
#define SHIFT 0
typedef int16_t quantized;
typedef int16_t vquantized __attribute__((vector_size(LANES * 2), aligned(2), may_alias));
typedef int8_t vbyte __attribute__((vector_size(LANES * 2), aligned(1), may_alias));
typedef int16_t vshort __attribute__((vector_size(LANES * 4)));

INLINE vfloat load_group(const void *address) { /* by intrinsics: gcc widens a generic vector in four steps */
#if defined(__AVX512BW__)
    return (vfloat)_mm512_cvtepi8_epi16(_mm256_loadu_si256(address));
#elif LANES == 8
    return (vfloat)_mm256_cvtepi8_epi16(_mm_loadu_si128(address));
#else
    return (vfloat)__builtin_convertvector(*(const vbyte *)address, vshort);
#endif
}

INLINE vfloat add_group(vfloat sum, vfloat weight, vfloat input) {
#if defined(__AVX512BW__)
    vint products = (vint)_mm512_madd_epi16((__m512i)weight, (__m512i)input);
#elif LANES == 8
    vint products = (vint)_mm256_madd_epi16((__m256i)weight, (__m256i)input);
#else
    vshort a = (vshort)weight, b = (vshort)input;
    vint products;
    for (int i = 0; i < LANES; i++) products[i] = a[2 * i] * b[2 * i] + a[2 * i + 1] * b[2 * i + 1];
#endif
    return (vfloat)((vint)sum + products);
}

#endif

/* Return the largest magnitude of a row, or a number that is not finite where the row has one. */
INLINE float row_magnitude(const element *row, int64_t width) {
    vfloat most = splat(0), rest = splat(0);
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) {
        vfloat value = load_elements(row + i);
        most = largest(largest(value, -value), most);
        rest += value - value; /* 0, or not a number for good */
    }
    float best = largest_of(most), remainder = sum_of(rest);
    for (; i < width; i++) {
        float value = load_element(row + i);
        best = fabsf(value) > best ? fabsf(value) : best;
        remainder += value - value;
    }
    return best + remainder;
}

/* Round a row to [-127, 127] times its scale, which is returned; zeros fill the last word. */
static float quantize_row(const element *row, int64_t width, int64_t words, quantized *result) {
    const float magnitude = row_magnitude(row, width);
    const float inverse = magnitude > 0 && isfinite(magnitude) ? 127.0f / magnitude : 0;
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) {
        vint integers = nearest(load_elements(row + i) * splat(inverse));
        *(vquantized *)(result + i) = __builtin_convertvector(integers + SHIFT, vquantized);
    }
    for (; i < width; i++) result[i] = (quantized)(__builtin_rintf(load_element(row + i) * inverse) + SHIFT);
    for (; i < words * GROUP; i++) result[i] = SHIFT;
    return magnitude / 127.0f;
}

INLINE input_rows quantized_rows(const gemm_arguments *a, int64_t begin, int64_t end, float *space) {
    float *scales = space, *words = space + (end - begin);
    for (int64_t row = 0; row < end - begin; row++)
        scales[row] = quantize_row((const element *)a->input + (begin + row) * a->input_stride, a->inputs, a->words,
                                   (quantized *)(words + row * a->words));
    return (input_rows){(const char *)(words - begin * a->words), a->words * (int64_t)sizeof(float), scales - begin};
}

/* Turn integer sums into what they stand for. */
static __attribute__((noinline)) void write_scaled(const gemm_arguments *a, float scale, int64_t row, int64_t panel, float *sums) {
    for (int j = 0; j < COLUMNS; j += LANES) {
        vint sum = (vint)load(sums + j);
        if (SHIFT) sum -= (vint)load(a->weight_sums + panel * COLUMNS + j) * SHIFT;
        store(sums + j, __builtin_convertvector(sum, vfloat) * (load(a->weight_scales + panel * COLUMNS + j) * splat(scale)));
    }
    write_panel(a, row, panel, sums);
}

#define TILES(name) name##_int8
#define WEIGHT_BYTES GROUP
#define INPUT_PARTS 1
#define LOAD_WEIGHT(address, part) ((void)(part), load_group(address))
#define ADD_PRODUCT(sum, weight, input) add_group(sum, weight, input)
#define INPUT_SPACE(a, rows) ((rows) * ((a)->words + 1))
#define INPUT_ROWS(a, begin, end, space) quantized_rows(a, begin, end, space)
#define WRITE(a, in, row, panel, sums) write_scaled(a, (in)->scales[row], row, panel, sums)
#include "tiles.h"

EXPORT void NAME(multiply_int8)(const gemm_arguments *a) { multiply_all_int8(a); }
