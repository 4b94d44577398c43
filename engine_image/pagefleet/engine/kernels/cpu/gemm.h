/* output = input . weight, with what follows it in a model fused in: bias, residual, SwiGLU.
 *
 * The weight is packed once into panels of COLUMNS outputs. A tile is up to ROWS rows by one or more panels, whose sums
 * stay in registers over the whole depth, so every output sums in the same order whatever the batch is. */
#include "arguments.h"
#include "element.h"

#define BLOCK_BYTES (192 * 1024) /* input rows that stay in the second-level cache while all panels pass by */
#define PARALLEL_WORK (1 << 16)  /* multiply-adds below which waking the other threads costs more than it saves */
#define GROUP_PANELS 2           /* panels that all tiles of a block pass before the next: they stay in that cache too */
#define WORDS_PER_LINE (64 / COLUMNS) /* a tile fetches a quarter of a panel of the next group, in lines of 64 bytes */
#define MOST_VECTORS 8           /* sums of one row: with fewer than 8 in all the multiply-adds wait for each other */

/* Write `count` outputs of one row, beginning at output `column`, from a vector of sums. */
INLINE void write_sums(const gemm_arguments *a, int64_t row, int64_t column, int64_t count, vfloat sum) {
    if (a->mode == GEMM_FLOAT32) {
        float *output = (float *)a->output + row * a->output_stride + column;
        if (count >= LANES) store(output, sum);
        else for (int i = 0; i < count; i++) output[i] = sum[i];
        return;
    }
    element *output = (element *)a->output + row * a->output_stride + column;
    const element *residual = (const element *)a->residual + row * a->output_stride + column;
    if (count >= LANES) {
        if (a->mode == GEMM_ADD) sum = load_elements(residual) + rounded(sum);
        store_elements(output, sum);
        return;
    }
    for (int i = 0; i < count; i++) {
        float value = sum[i];
        if (a->mode == GEMM_ADD) value = load_element(residual + i) + rounded_scalar(value);
        store_element(output + i, value);
    }
}

/* Input rows as the tiles read them: words, or PARTS floats for each. */
typedef struct {
    const char *first;
    int64_t stride_bytes;
} input_rows;

INLINE vfloat gated(vfloat gate, vfloat up) {
    gate = rounded(gate);
    vfloat activated = gate / (splat(1.0f) + exponential(-gate));
    return rounded(activated) * rounded(up);
}

/* Finish one row of one panel. Not inlined into the tiles: their number would make the compiler slow. */
static __attribute__((noinline)) void write_panel(const gemm_arguments *a, int64_t row, int64_t panel, float *sums) {
    if (a->bias)
        for (int j = 0; j < COLUMNS; j += LANES) store(sums + j, load(sums + j) + load(a->bias + panel * COLUMNS + j));
    if (a->mode == GEMM_SWIGLU) { /* the first half of a panel is gate, the second up */
        for (int j = 0; j < COLUMNS / 2; j += LANES) {
            int64_t column = panel * (COLUMNS / 2) + j;
            write_sums(a, row, column, a->columns / 2 - column, gated(load(sums + j), load(sums + COLUMNS / 2 + j)));
        }
        return;
    }
    for (int j = 0; j < COLUMNS; j += LANES)
        write_sums(a, row, panel * COLUMNS + j, a->columns - panel * COLUMNS - j, load(sums + j));
}

/* sums += weights . inputs of word `k`. */
INLINE void multiply_word(vfloat sums[ROWS][MOST_VECTORS], const float *weight, int64_t words, const float *input[ROWS],
                          int64_t k, const int rows, const int vectors) {
#pragma GCC unroll 2
    for (int part = 0; part < PARTS; part++) {
        vfloat w[MOST_VECTORS];
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) {
            const float *panel_weight = weight + (j / PANEL_VECTORS) * words * COLUMNS;
            w[j] = part_of(load(panel_weight + k * COLUMNS + (j % PANEL_VECTORS) * LANES), part);
        }
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            vfloat x = splat_word(input[i] + k * PARTS + part);
#pragma GCC unroll 8
            for (int j = 0; j < vectors; j++) sums[i][j] = add_product(sums[i][j], w[j], x);
        }
    }
}

/* Multiply one tile, and meanwhile fetch weights that come later from memory, which nothing else would overlap. */
INLINE void multiply_tile(const gemm_arguments *a, const input_rows *in, int64_t row, int64_t panel, const char *ahead,
                          const int rows, const int panels) {
    const int64_t words = a->words;
    const int vectors = panels * PANEL_VECTORS;
    const float *input[ROWS];
    vfloat sums[ROWS][MOST_VECTORS];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
        input[i] = (const float *)(in->first + (row + i) * in->stride_bytes);
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) sums[i][j] = splat(0);
    }
    const float *weight = a->weight + panel * words * COLUMNS;
    for (int64_t begin = 0; begin < words; begin += WORDS_PER_LINE) {
        const int64_t end = begin + WORDS_PER_LINE < words ? begin + WORDS_PER_LINE : words;
        __builtin_prefetch(ahead + begin / WORDS_PER_LINE * 64, 0, 2);
        for (int64_t k = begin; k < end; k++)
            multiply_word(sums, weight, words, input, k, rows, vectors);
    }
    float done[ROWS][MOST_VECTORS * LANES] __attribute__((aligned(64)));
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) store(&done[i][j * LANES], sums[i][j]);
    for (int i = 0; i < rows; i++)
        for (int q = 0; q < panels; q++) write_panel(a, row + i, panel + q, &done[i][q * COLUMNS]);
}

/* Few rows take several panels at once, so that there are always enough independent sums. */
#define ONE_ROW_PANELS (8 / PANEL_VECTORS)
#define TWO_ROW_PANELS (4 / PANEL_VECTORS)

static __attribute__((noinline)) void multiply_rows(const gemm_arguments *a, const input_rows *in, int64_t row,
                                                   int64_t panel, const char *ahead, int rows, int panels) {
    switch (rows * 8 + panels) {
        case 8 + ONE_ROW_PANELS: multiply_tile(a, in, row, panel, ahead, 1, ONE_ROW_PANELS); break;
#if TWO_ROW_PANELS > 1
        case 16 + TWO_ROW_PANELS: multiply_tile(a, in, row, panel, ahead, 2, TWO_ROW_PANELS); break;
        case 24 + TWO_ROW_PANELS: multiply_tile(a, in, row, panel, ahead, 3, TWO_ROW_PANELS); break;
#endif
        case 8 + 1: multiply_tile(a, in, row, panel, ahead, 1, 1); break;
        case 16 + 1: multiply_tile(a, in, row, panel, ahead, 2, 1); break;
        case 24 + 1: multiply_tile(a, in, row, panel, ahead, 3, 1); break;
        case 32 + 1: multiply_tile(a, in, row, panel, ahead, 4, 1); break;
        case 40 + 1: multiply_tile(a, in, row, panel, ahead, 5, 1); break;
        default: multiply_tile(a, in, row, panel, ahead, 6, 1); break;
    }
}

/* Multiply rows [begin, end) with panels [first, last), in tiles of nearly equal height. */
static void multiply_group(const gemm_arguments *a, const input_rows *in, int64_t begin, int64_t end, int64_t first, int64_t last) {
    const int64_t tiles = (end - begin + ROWS - 1) / ROWS, panel_bytes = a->words * COLUMNS * sizeof(float);
    for (int64_t tile = 0; tile < tiles; tile++) {
        int64_t row = begin + (end - begin) * tile / tiles;
        int rows = (int)(begin + (end - begin) * (tile + 1) / tiles - row);
        int width = rows == 1 ? ONE_ROW_PANELS : rows <= 3 ? TWO_ROW_PANELS : 1;
        for (int64_t panel = first; panel < last;) {
            int panels = panel + width <= last ? width : 1;
            int64_t later = panel + last - first;
            const char *ahead = (const char *)a->weight + later * panel_bytes + panel_bytes * tile / tiles;
            multiply_rows(a, in, row, panel, ahead, rows, panels);
            panel += panels;
        }
    }
}

/* Return the rows [begin, end) as tiles read them, counted from row 0; `space` holds the widened ones. */
INLINE input_rows rows_of(const gemm_arguments *a, int64_t begin, int64_t end, float *space) {
    if (PARTS == 1) return (input_rows){a->input, a->input_stride * (int64_t)sizeof(element)};
    const int64_t width = a->words * PARTS;
    for (int64_t row = begin; row < end; row++) {
        const element *input = (const element *)a->input + row * a->input_stride;
        for (int64_t i = 0; i < width; i++) space[(row - begin) * width + i] = load_element(input + i);
    }
    return (input_rows){(const char *)(space - begin * width), width * (int64_t)sizeof(float)};
}

EXPORT void NAME(multiply)(const gemm_arguments *a) {
    const int64_t panels = (a->columns + COLUMNS - 1) / COLUMNS;
    const int64_t group_panels = a->rows <= ROWS ? ONE_ROW_PANELS : GROUP_PANELS;
    const int64_t groups = (panels + group_panels - 1) / group_panels;
    int64_t most_rows = BLOCK_BYTES / 4 / PARTS / a->words / ROWS * ROWS;
    if (most_rows < 2 * ROWS) most_rows = 2 * ROWS;
    const int64_t blocks = (a->rows + most_rows - 1) / most_rows;
#pragma omp parallel if (a->rows * a->words * a->columns > PARALLEL_WORK)
    for (int64_t block = 0; block < blocks; block++) {
        int64_t begin = a->rows * block / blocks, end = a->rows * (block + 1) / blocks;
        float space[PARTS == 1 ? 1 : (end - begin) * a->words * PARTS];
        const input_rows in = rows_of(a, begin, end, space);
#pragma omp for schedule(static) nowait
        for (int64_t group = 0; group < groups; group++) {
            int64_t first = group * group_panels;
            multiply_group(a, &in, begin, end, first, first + group_panels < panels ? first + group_panels : panels);
        }
    }
}
