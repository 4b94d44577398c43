/* Rotate query and key heads, and store keys and values in the blocks: the first of the two calls of a layer. */
#pragma once
#include "arguments.h"
#include "attention_workspace.h"
#include "hadamard.h"

/* Words between the start of a layer's pool and a unit of a block. Keys and values have units of equal size. */
INLINE int64_t unit_offset(const attention_arguments *a, int64_t block, int64_t head, int64_t unit) {
    return ((block * a->kv_heads + head) * (a->block_size / UNIT) + unit) * UNIT * (a->head_dim / PAIR);
}

INLINE void rotate(const attention_arguments *a, const element *head, int64_t token, element *result) {
    const element *cosine = (const element *)a->cosine + token * a->head_dim;
    const element *sine = (const element *)a->sine + token * a->head_dim;
    int64_t half = a->head_dim / 2;
    int64_t i = 0;
    for (; i + LANES <= half; i += LANES) {
        vfloat low = load_elements(head + i), high = load_elements(head + half + i);
        vfloat rotated_low = rounded(low * load_elements(cosine + i)) - rounded(high * load_elements(sine + i));
        vfloat rotated_high =
            rounded(high * load_elements(cosine + half + i)) + rounded(low * load_elements(sine + half + i));
        store_elements(result + i, rotated_low);
        store_elements(result + half + i, rotated_high);
    }
    for (; i < half; i++) {
        float low = load_element(head + i), high = load_element(head + half + i);
        float rotated_low =
            rounded_scalar(low * load_element(cosine + i)) - rounded_scalar(high * load_element(sine + i));
        float rotated_high = rounded_scalar(high * load_element(cosine + half + i)) +
                             rounded_scalar(low * load_element(sine + half + i));
        store_element(result + i, rotated_low);
        store_element(result + half + i, rotated_high);
    }
}

INLINE void turn_elements(const element *source, int64_t size, element *result) {
    float numbers[MOST_HEAD_DIM];
    for (int64_t i = 0; i < size; i += LANES) store(numbers + i, load_elements(source + i));
    turn(numbers, size);
    for (int64_t i = 0; i < size; i += LANES) store_elements(result + i, load(numbers + i));
}

INLINE void store_token(const attention_arguments *a, int64_t token, int64_t kv_head, const int turns_values) {
    int64_t dim = a->head_dim;
    int64_t block = a->slots[token] / a->block_size, offset = a->slots[token] % a->block_size;
    int64_t unit = unit_offset(a, block, kv_head, offset / UNIT) * PAIR, slot = offset % UNIT;
    const element *key = (const element *)a->key + token * a->kv_stride + kv_head * dim;
    const element *value = (const element *)a->value + token * a->kv_stride + kv_head * dim;
    element rotated_key[MOST_HEAD_DIM], turned_value[MOST_HEAD_DIM];
    if (a->cosine) {
        rotate(a, key, token, rotated_key);
        key = rotated_key;
    }
    if (turns_values) {
        turn_elements(value, dim, turned_value);
        value = turned_value;
    }
    element *keys = (element *)a->keys + unit + slot * PAIR;
    element *values = (element *)a->values + unit + (slot / PAIR) * dim * PAIR + slot % PAIR;
    for (int64_t i = 0; i < dim; i++) keys[(i / PAIR) * UNIT * PAIR + i % PAIR] = key[i];
    for (int64_t i = 0; i < dim; i++) values[i * PAIR] = value[i];
}

static void store_rows(const attention_arguments *a, const int turns_values) {
#pragma omp parallel for schedule(static) if (a->tokens > 8)
    for (int64_t token = 0; token < a->tokens; token++) {
        for (int64_t head = 0; head < a->kv_heads; head++) store_token(a, token, head, turns_values);
        if (a->cosine)
            for (int64_t head = 0; head < a->query_heads; head++) {
                element *query = (element *)a->query + token * a->query_stride + head * a->head_dim;
                rotate(a, query, token, query);
            }
    }
}

EXPORT void NAME(rotate_and_store)(const attention_arguments *a) { store_rows(a, 0); }
