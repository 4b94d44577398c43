/* output = input . weight over float32 or bfloat16.
 *
 * The weight is packed once into panels of COLUMNS outputs. A tile is up to ROWS rows by one or more panels, whose sums
 * stay in registers over the whole depth, so every output sums in the same order whatever the batch is. */
#include "epilogue.h"

#define BLOCK_BYTES (192 * 1024) /* input rows that stay in the second-level cache while all panels pass by */
#define PARALLEL_WORK (1 << 16)  /* multiply-adds below which waking the other threads costs more than it saves */
#define GROUP_PANELS 2           /* panels that all tiles of a block pass before the next: they stay in that cache too */
#define WORDS_PER_LINE (256 / COLUMNS / WEIGHT_BYTES) /* a tile fetches a quarter of a later panel, in lines of 64 bytes */
#define MOST_VECTORS 8           /* sums of one row: with fewer than 8 in all the multiply-adds wait for each other */

/* Few rows take several panels at once, so that there are always enough independent sums. */
#define ONE_ROW_PANELS (8 / PANEL_VECTORS)
#define TWO_ROW_PANELS (4 / PANEL_VECTORS)

/* Input rows as the tiles read them. */
typedef struct {
    const char *first; /* row 0, whether or not it is among them */
    int64_t stride_bytes;
    const float *scales; /* int8: of the groups of each row, from row 0 on; int4: their sums */
    const int32_t *zeros; /* int8: the integers that stand for 0 in these groups */
} input_rows;

#if PARTS == 2

/* Return the rows [begin, end) as tiles read them, counted from row 0; `space` holds the widened ones. */
INLINE input_rows widened_rows(const gemm_arguments *a, int64_t begin, int64_t end, float *space) {
    const int64_t width = a->words * PAIR;
    for (int64_t row = begin; row < end; row++) {
        const element *input = (const element *)a->input + row * a->input_stride;
        for (int64_t i = 0; i < width; i++) space[(row - begin) * width + i] = load_element(input + i);
    }
    return (input_rows){(const char *)(space - begin * width), width * (int64_t)sizeof(float), 0, 0};
}

#define INPUT_SPACE(a, rows) ((rows) * (a)->words * PAIR)
#define INPUT_ROWS(a, begin, end, space) widened_rows(a, begin, end, space)
#else
#define INPUT_SPACE(a, rows) 1
#define INPUT_ROWS(a, begin, end, space) \
    ((void)(space), (input_rows){(a)->input, (a)->input_stride * (int64_t)sizeof(element), 0, 0})
#endif
#define INPUT_PARTS PARTS
#define LOAD_WEIGHT(address, part) part_of(load(address), part)
#define ADD_PRODUCT(sum, weight, input) add_product(sum, weight, input)
#define TILES(name) name##_words
#define PASSES(a) 1
#define PASS_WORDS(a) ((a)->words)
#define END_PASS(a, in, row, panel, pass, column, target, sum) store(target, sum)
#define WEIGHT_BYTES 4
#define WRITE(a, in, row, panel, sums) write_panel(a, row, panel, sums)
#include "tiles.h"

EXPORT void NAME(multiply)(const gemm_arguments *a) { multiply_all_words(a); }
