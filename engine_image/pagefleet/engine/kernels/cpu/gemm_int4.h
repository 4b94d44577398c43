/* output = input . weight over 4-bit numbers, each group of inputs with a scale and a zero point; layers/int4.py says how.
 *
 * A word holds 8 numbers that are neighbours along the depth. A pass sums numbers times inputs over one group; scale and
 * zero point come in once for each group, the zero point by way of the sum of the group's inputs. */
#define WORD_NUMBERS 8

typedef uint8_t vzero __attribute__((vector_size(LANES), aligned(1), may_alias));

INLINE vfloat number_of(const void *address, int part) {
    return __builtin_convertvector((vint)(((vword)load(address) >> (4 * part)) & 15), vfloat);
}

/* Return the rows [begin, end) in float32, with the sums of their groups. */
INLINE input_rows summed_rows(const gemm_arguments *a, int64_t begin, int64_t end, float *space) {
    const int64_t width = a->words * WORD_NUMBERS, groups = a->groups, group = width / groups;
    float *sums = space;
#if BFLOAT16
    float *values = space + (end - begin) * groups;
#endif
    for (int64_t row = begin; row < end; row++) {
        const element *input = (const element *)a->input + row * a->input_stride;
        for (int64_t g = 0; g < groups; g++) {
            vfloat sum = splat(0);
            for (int64_t i = g * group; i < (g + 1) * group; i += LANES) {
                const vfloat value = load_elements(input + i);
                sum += value;
#if BFLOAT16
                store(values + (row - begin) * width + i, value);
#endif
            }
            sums[(row - begin) * groups + g] = sum_of(sum);
        }
    }
#if BFLOAT16
    return (input_rows){(const char *)(values - begin * width), width * (int64_t)sizeof(float), sums - begin * groups, 0};
#else
    return (input_rows){a->input, a->input_stride * (int64_t)sizeof(float), sums - begin * groups, 0};
#endif
}

/* Add a group's sums to those of the groups before it. */
INLINE void add_pass(const gemm_arguments *a, const input_rows *in, int64_t row, int64_t panel, int64_t group, int column,
                     float *target, vfloat sum) {
    const int64_t place = (panel * a->groups + group) * COLUMNS + column;
    const vfloat zeros = __builtin_convertvector(*(const vzero *)(a->weight_zeros + place), vfloat);
    const vfloat shifted = sum - zeros * splat(in->scales[row * a->groups + group]);
    /* Fused in every tile, so that batches agree. */
    store(target, load(target) + load(a->weight_scales + place) * shifted);
}

#define TILES(name) name##_int4
#define WEIGHT_BYTES 4
#define INPUT_PARTS WORD_NUMBERS
#define LOAD_WEIGHT(address, part) number_of(address, part)
#define ADD_PRODUCT(sum, weight, input) ((sum) + (weight) * (input))
#define INPUT_SPACE(a, rows) ((rows) * ((a)->groups + (BFLOAT16 ? (a)->words * WORD_NUMBERS : 0)))
#define INPUT_ROWS(a, begin, end, space) summed_rows(a, begin, end, space)
#define PASSES(a) ((a)->groups)
#define PASS_WORDS(a) ((a)->words / (a)->groups)
#define END_PASS(a, in, row, panel, pass, column, target, sum) add_pass(a, in, row, panel, pass, column, target, sum)
#define WRITE(a, in, row, panel, sums) write_panel(a, row, panel, sums)
#include "tiles.h"

EXPORT void NAME(multiply_int4)(const gemm_arguments *a) { multiply_all_int4(a); }
