/* Products in register tiles, for one kind of numbers. Included once for each, after these are defined:
 *
 *   TILES(name)            the name of one of its functions
 *   WEIGHT_BYTES           of one word of the weight
 *   INPUT_PARTS            floats or words of the input for each word of the weight
 *   LOAD_WEIGHT(address, part), ADD_PRODUCT(sum, weight, input)
 *   INPUT_SPACE(a, rows)   floats that the rows need to be got ready
 *   INPUT_ROWS(a, begin, end, space)   the rows as tiles read them
 *   PASSES(a), PASS_WORDS(a)   parts that the depth is summed in, and their length, of which the last may lack some
 *   END_PASS(a, in, row, panel, pass, column, target, sum)   add the sums of one part to `target`, which begins at 0
 *   WRITE(a, in, row, panel, sums)     what becomes of one row of one panel */

/* sums += weights . inputs of word `k`. */
INLINE void TILES(multiply_word)(vfloat sums[ROWS][MOST_VECTORS], const char *weight, int64_t panel_bytes,
                                 const float *input[ROWS], int64_t k, const int rows, const int vectors) {
#pragma GCC unroll 8
    for (int part = 0; part < INPUT_PARTS; part++) {
        vfloat w[MOST_VECTORS];
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) {
            const char *panel = weight + (j / PANEL_VECTORS) * panel_bytes;
            w[j] = LOAD_WEIGHT(panel + (k * COLUMNS + (j % PANEL_VECTORS) * LANES) * WEIGHT_BYTES, part);
        }
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            vfloat x = splat_word(input[i] + k * INPUT_PARTS + part);
#pragma GCC unroll 8
            for (int j = 0; j < vectors; j++) sums[i][j] = ADD_PRODUCT(sums[i][j], w[j], x);
        }
    }
}

/* Multiply one tile, and meanwhile fetch weights that come later from memory, which nothing else would overlap. */
INLINE void TILES(multiply_tile)(const gemm_arguments *a, const input_rows *in, int64_t row, int64_t panel,
                                 const char *ahead, const int rows, const int panels) {
    const int64_t words = a->words, panel_bytes = words * COLUMNS * WEIGHT_BYTES, pass_words = PASS_WORDS(a);
    const int vectors = panels * PANEL_VECTORS;
    const float *input[ROWS];
    float passed[ROWS][MOST_VECTORS * LANES] __attribute__((aligned(64)));
    float done[ROWS][MOST_VECTORS * LANES] __attribute__((aligned(64)));
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) input[i] = (const float *)(in->first + (row + i) * in->stride_bytes);
    const char *weight = (const char *)a->weight + panel * panel_bytes;
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vectors; j++) store(&done[i][j * LANES], splat(0));
    for (int64_t pass = 0; pass < PASSES(a); pass++) {
        const int64_t last = (pass + 1) * pass_words < words ? (pass + 1) * pass_words : words;
        vfloat sums[ROWS][MOST_VECTORS];
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
            for (int j = 0; j < vectors; j++) sums[i][j] = splat(0);
        for (int64_t begin = pass * pass_words; begin < last; begin += WORDS_PER_LINE) {
            const int64_t end = begin + WORDS_PER_LINE < last ? begin + WORDS_PER_LINE : last;
            __builtin_prefetch(ahead + begin / WORDS_PER_LINE * 64, 0, 2);
            for (int64_t k = begin; k < end; k++)
                TILES(multiply_word)(sums, weight, panel_bytes, input, k, rows, vectors);
        }
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
            for (int j = 0; j < vectors; j++) store(&passed[i][j * LANES], sums[i][j]);
        __asm__ volatile("" : : "r"(passed) : "memory"); /* by way of memory: else gcc keeps the sums there while they grow */
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < vectors; j++)
                END_PASS(a, in, row + i, panel + j / PANEL_VECTORS, pass, j % PANEL_VECTORS * LANES, &done[i][j * LANES],
                         load(&passed[i][j * LANES]));
    }
    for (int i = 0; i < rows; i++)
        for (int q = 0; q < panels; q++) WRITE(a, in, row + i, panel + q, &done[i][q * COLUMNS]);
}

static __attribute__((noinline)) void TILES(multiply_rows)(const gemm_arguments *a, const input_rows *in, int64_t row,
                                                          int64_t panel, const char *ahead, int rows, int panels) {
    switch (rows * 8 + panels) {
        case 8 + ONE_ROW_PANELS: TILES(multiply_tile)(a, in, row, panel, ahead, 1, ONE_ROW_PANELS); break;
#if TWO_ROW_PANELS > 1
        case 16 + TWO_ROW_PANELS: TILES(multiply_tile)(a, in, row, panel, ahead, 2, TWO_ROW_PANELS); break;
        case 24 + TWO_ROW_PANELS: TILES(multiply_tile)(a, in, row, panel, ahead, 3, TWO_ROW_PANELS); break;
#endif
        case 8 + 1: TILES(multiply_tile)(a, in, row, panel, ahead, 1, 1); break;
        case 16 + 1: TILES(multiply_tile)(a, in, row, panel, ahead, 2, 1); break;
        case 24 + 1: TILES(multiply_tile)(a, in, row, panel, ahead, 3, 1); break;
        case 32 + 1: TILES(multiply_tile)(a, in, row, panel, ahead, 4, 1); break;
        case 40 + 1: TILES(multiply_tile)(a, in, row, panel, ahead, 5, 1); break;
        default: TILES(multiply_tile)(a, in, row, panel, ahead, 6, 1); break;
    }
}

/* Multiply rows [begin, end) with panels [first, last), in tiles of nearly equal height. */
static void TILES(multiply_group)(const gemm_arguments *a, const input_rows *in, int64_t begin, int64_t end,
                                  int64_t first, int64_t last) {
    const int64_t tiles = (end - begin + ROWS - 1) / ROWS, panel_bytes = a->words * COLUMNS * WEIGHT_BYTES;
    for (int64_t tile = 0; tile < tiles; tile++) {
        int64_t row = begin + (end - begin) * tile / tiles;
        int rows = (int)(begin + (end - begin) * (tile + 1) / tiles - row);
        int width = rows == 1 ? ONE_ROW_PANELS : rows <= 3 ? TWO_ROW_PANELS : 1;
        for (int64_t panel = first; panel < last;) {
            int panels = panel + width <= last ? width : 1;
            int64_t later = panel + last - first;
            const char *ahead = (const char *)a->weight + later * panel_bytes + panel_bytes * tile / tiles;
            TILES(multiply_rows)(a, in, row, panel, ahead, rows, panels);
            panel += panels;
        }
    }
}

INLINE void TILES(multiply_all)(const gemm_arguments *a) {
    const int64_t panels = (a->columns + COLUMNS - 1) / COLUMNS;
    const int64_t group_panels = a->rows <= ROWS ? ONE_ROW_PANELS : GROUP_PANELS;
    const int64_t groups = (panels + group_panels - 1) / group_panels;
    int64_t most_rows = BLOCK_BYTES / 4 / INPUT_PARTS / a->words / ROWS * ROWS;
    if (most_rows < 2 * ROWS) most_rows = 2 * ROWS;
    const int64_t blocks = (a->rows + most_rows - 1) / most_rows;
#pragma omp parallel if (a->rows * a->words * a->columns > PARALLEL_WORK)
    for (int64_t block = 0; block < blocks; block++) {
        int64_t begin = a->rows * block / blocks, end = a->rows * (block + 1) / blocks;
        float space[INPUT_SPACE(a, end - begin)];
        const input_rows in = INPUT_ROWS(a, begin, end, space);
#pragma omp for schedule(static) nowait
        for (int64_t group = 0; group < groups; group++) {
            int64_t first = group * group_panels;
            TILES(multiply_group)(a, &in, begin, end, first, first + group_panels < panels ? first + group_panels : panels);
        }
    }
}

#undef TILES
#undef WEIGHT_BYTES
#undef INPUT_PARTS
#undef LOAD_WEIGHT
#undef ADD_PRODUCT
#undef INPUT_SPACE
#undef INPUT_ROWS
#undef PASSES
#undef PASS_WORDS
#undef END_PASS
#undef WRITE
