/* Row-wise operations between the products. */
#include "arguments.h"
#include "element.h"

/* Scale a row by 1 / sqrt(mean of squares + epsilon), round, then multiply the weight: the model's order. */
EXPORT void NAME(rms_norm)(const rms_arguments *a) {
    const int64_t width = a->width, whole = width - width % LANES;
#pragma omp parallel for schedule(static) if (a->rows * width > (1 << 15))
    for (int64_t row = 0; row < a->rows; row++) {
        const element *input = (const element *)a->input + row * width, *weight = (const element *)a->weight;
        element *output = (element *)a->output + row * width;
        vfloat sums[2] = {splat(0), splat(0)};
        int64_t i = 0;
        for (; i + 2 * LANES <= width; i += 2 * LANES) {
            vfloat a0 = load_elements(input + i), a1 = load_elements(input + i + LANES);
            sums[0] += a0 * a0;
            sums[1] += a1 * a1;
        }
        if (i < whole) {
            vfloat a0 = load_elements(input + i);
            sums[0] += a0 * a0;
        }
        float sum = sum_of(sums[0] + sums[1]);
        for (i = whole; i < width; i++) sum += load_element(input + i) * load_element(input + i);
        float factor = 1.0f / __builtin_sqrtf(sum / (float)width + (float)a->epsilon);
        for (i = 0; i < whole; i += LANES)
            store_elements(output + i, rounded(load_elements(input + i) * splat(factor)) * load_elements(weight + i));
        for (; i < width; i++)
            store_element(output + i, rounded_scalar(load_element(input + i) * factor) * load_element(weight + i));
    }
}
