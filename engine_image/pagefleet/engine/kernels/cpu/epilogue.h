/* What follows a product in a model and is fused into it: bias, residual, SwiGLU. */
#pragma once
#include "arguments.h"
#include "element.h"

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
