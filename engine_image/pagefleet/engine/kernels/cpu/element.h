/* What differs between float32 and bfloat16. A 32-bit word holds one float32 or two bfloat16 that are neighbours along
 * the summed dimension, so that every kernel is written once, over words. Define BFLOAT16 as 0 or 1 before. */
#pragma once
#include "vector.h"

#if BFLOAT16

typedef uint16_t element;
typedef uint16_t velement __attribute__((vector_size(LANES * 2), aligned(2), may_alias));
#define PAIR 2
#define NAME(function) function##_bfloat16

INLINE vfloat load_elements(const element *source) {
    return (vfloat)(__builtin_convertvector(*(const velement *)source, vword) << 16);
}

/* To nearest, ties to even, left in the upper half. Arithmetic makes only quiet NaN, which the addition keeps NaN. */
INLINE vword rounded_bits(vfloat value) {
    vword bits = (vword)value;
    return bits + 0x7fff + ((bits >> 16) & 1);
}

INLINE vfloat rounded(vfloat value) { return (vfloat)(rounded_bits(value) & 0xffff0000); }

INLINE void store_elements(element *target, vfloat value) {
    *(velement *)target = __builtin_convertvector(rounded_bits(value) >> 16, velement);
}

INLINE float load_element(const element *source) {
    uint32_t bits = (uint32_t)*source << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

INLINE void store_element(element *target, float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    *target = (element)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

INLINE float rounded_scalar(float value) {
    element bits;
    store_element(&bits, value);
    return load_element(&bits);
}

INLINE vfloat multiply_add(vfloat sum, vfloat a, vfloat b) {
#ifdef __AVX512BF16__
    return (vfloat)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#else
    sum += (vfloat)((vword)a << 16) * (vfloat)((vword)b << 16);
    sum += (vfloat)((vword)a & 0xffff0000) * (vfloat)((vword)b & 0xffff0000);
    return sum;
#endif
}

#else

typedef float element;
#define PAIR 1
#define NAME(function) function##_float32

INLINE vfloat load_elements(const element *source) { return load(source); }
INLINE vfloat rounded(vfloat value) { return value; }
INLINE void store_elements(element *target, vfloat value) { store(target, value); }
INLINE float load_element(const element *source) { return *source; }
INLINE void store_element(element *target, float value) { *target = value; }
INLINE float rounded_scalar(float value) { return value; }
INLINE vfloat multiply_add(vfloat sum, vfloat a, vfloat b) { return sum + a * b; }

#endif

/* A kernel multiplies words part by part. */
#if BFLOAT16 && !defined(__AVX512BF16__) && !defined(EMULATE_AVX512)

#define PARTS 2 /* no instruction multiplies pairs: a word is two float32 */

INLINE vfloat part_of(vfloat word, int part) {
    return part ? (vfloat)((vword)word & 0xffff0000) : (vfloat)((vword)word << 16);
}

INLINE vfloat add_product(vfloat sum, vfloat a, vfloat b) { return sum + a * b; }

#else

#define PARTS 1

INLINE vfloat part_of(vfloat word, int part) { return (void)part, word; }

INLINE vfloat add_product(vfloat sum, vfloat a, vfloat b) { return multiply_add(sum, a, b); }

#endif

/* The word at `source` in every lane. */
INLINE vfloat splat_word(const float *source) { return splat(*source); }
