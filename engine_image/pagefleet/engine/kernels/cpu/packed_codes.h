/* Codes of few bits and the scales that they stand for: packed_format.py defines the numbers, this their layout.
 *
 * Codes lie in runs of eight: code i of a run begins at its bit i * bits. A block of one KV head is one record: the
 * codes of its keys [unit][head_dim][16], a scale's code and the least key (bfloat16) of each channel, the codes of its
 * values [unit][16][head_dim], a scale's code and the middle (int8) of each token. */
#pragma once
#include "arguments.h"
#include "vector.h"

#define RUN 8 /* codes */
#define LEAST_SCALE_EXPONENT (-20)

static const float SCALE_STEPS[8] = {1.0f,        1.090507733f, 1.189207115f, 1.296839555f,
                                     1.414213562f, 1.542210825f, 1.681792831f, 1.834008086f};

typedef struct {
    uint8_t *key_codes;
    uint8_t *key_scales;
    uint16_t *key_least;
    uint8_t *value_codes;
    uint8_t *value_scales;
    int8_t *value_middles;
} packed_record;

INLINE packed_record record_of(const packed_arguments *p, int64_t block, int64_t kv_head) {
    const int64_t dim = p->rows.head_dim, tokens = p->rows.block_size, run_bytes = dim * tokens / RUN;
    packed_record record;
    record.key_codes = (uint8_t *)p->records + (block * p->rows.kv_heads + kv_head) * p->record_bytes;
    record.key_scales = record.key_codes + run_bytes * p->key_bits;
    record.key_least = (uint16_t *)(record.key_scales + dim);
    record.value_codes = (uint8_t *)(record.key_least + dim);
    record.value_scales = record.value_codes + run_bytes * p->value_bits;
    record.value_middles = (int8_t *)(record.value_scales + tokens);
    return record;
}

/* Where the run of eight that begins with code `first` lies. */
INLINE const uint8_t *run_at(const void *codes, int64_t first, const int bits) {
    return (const uint8_t *)codes + first / RUN * bits;
}

/* Reads up to a byte more than the codes: a record never ends with them. */
INLINE vfloat load_codes(const uint8_t *runs, const int bits) {
    if (bits == 8) return __builtin_convertvector(load_bytes(runs), vfloat);
    float words[2];
    memcpy(words, runs, 4);
    vint all = (vint)splat(words[0]);
    if (LANES > RUN) {
        memcpy(words + 1, runs + bits, 4);
        all = (vint)choose(lane_numbers() < RUN, (vfloat)all, splat(words[1]));
    }
    vword codes = (vword)all >> (vword)(lane_numbers() % RUN * bits);
    return __builtin_convertvector((vint)codes & ((1 << bits) - 1), vfloat);
}

INLINE void store_codes(uint8_t *runs, vint codes, const int bits) {
    for (int run = 0; run < LANES / RUN; run++) {
        uint64_t joined = 0;
        for (int i = 0; i < RUN; i++) joined |= (uint64_t)codes[run * RUN + i] << i * bits;
        memcpy(runs + run * bits, &joined, bits);
    }
}

INLINE vfloat scales_of(const uint8_t *codes) {
    vfloat steps;
    for (int i = 0; i < LANES; i++) steps[i] = SCALE_STEPS[i % 8];
    vint code = load_bytes(codes);
    return (vfloat)((vint)__builtin_shuffle(steps, code & 7) + (((code >> 3) + LEAST_SCALE_EXPONENT) << 23));
}

INLINE float scale_of(uint8_t code) {
    uint8_t codes[LANES] = {code};
    return scales_of(codes)[0];
}

/* The code of the least scale that is no smaller than `scale`, which is not negative; the last where none is. */
INLINE int scale_code(float scale) {
    uint32_t bits;
    memcpy(&bits, &scale, 4);
    int exponent = (int)(bits >> 23) - 127;
    if (exponent < LEAST_SCALE_EXPONENT) return 0;
    bits = (bits & 0x7fffff) | 0x3f800000;
    float mantissa;
    memcpy(&mantissa, &bits, 4);
    int code = (exponent - LEAST_SCALE_EXPONENT) * 8;
    for (int i = 0; i < 8; i++) code += SCALE_STEPS[i] < mantissa;
    return code > 255 ? 255 : code;
}

INLINE vfloat load_least(const uint16_t *least) {
    typedef uint16_t vhalf __attribute__((vector_size(LANES * 2), aligned(1), may_alias));
    return (vfloat)(__builtin_convertvector(*(const vhalf *)least, vword) << 16);
}

INLINE float load_bfloat16(const uint16_t *source) {
    uint32_t bits = (uint32_t)*source << 16;
    float number;
    memcpy(&number, &bits, 4);
    return number;
}

/* The largest bfloat16 that is no larger; what is not a number stays so. */
INLINE uint16_t rounded_down(float number) {
    uint32_t bits;
    memcpy(&bits, &number, 4);
    if (number < 0 && (bits & 0xffff)) bits += 0x10000;
    return (uint16_t)(bits >> 16);
}
