/* The argument blocks that Python fills: one pointer per call. `library.py` mirrors them field by field. */
#pragma once
#include <stdint.h>

enum { GEMM_STORE, GEMM_ADD, GEMM_SWIGLU, GEMM_FLOAT32 };

typedef struct {
    const void *input;    /* [rows, input_stride] elements, of which the first 2 * words or words count */
    const void *weight;   /* [panels][words][COLUMNS] words: one float32, or two bfloat16, 2 or 4 int8, 8 int4 along the depth */
    const float *bias;    /* [panels * COLUMNS] or null */
    const void *residual; /* GEMM_ADD: laid out as the output; may be the output itself */
    void *output;         /* [rows, output_stride] elements; float32 with GEMM_FLOAT32 */
    int64_t rows;
    int64_t words;   /* depth in words */
    int64_t columns; /* outputs that count; with GEMM_SWIGLU gate and up together */
    int64_t input_stride;
    int64_t output_stride;
    int64_t mode;
    const float *weight_scales;   /* int8: [panels * COLUMNS], what one step of an output's weights stands for;
                                     int4: [panels][groups][COLUMNS] */
    const int16_t *weight_sums;   /* int8: [panels][groups][COLUMNS], sums over the depth of a group */
    int64_t inputs;               /* int8: depth in numbers */
    const uint8_t *weight_zeros;  /* int4: [panels][groups][COLUMNS], the numbers that stand for 0 */
    int64_t groups;               /* parts of the depth with a scale each: int4 of the weights, words / groups words long;
                                     int8 of the inputs, INPUT_GROUP inputs long, the last perhaps less */
} gemm_arguments;

typedef struct {
    void *query;       /* [tokens, query_stride] elements, head after head; rotated in place */
    const void *key;   /* [tokens, kv_stride] */
    const void *value; /* [tokens, kv_stride] */
    void *output;      /* [tokens, query_heads * head_dim] */
    const void *cosine; /* [tokens, head_dim] elements, null when the rows are rotated already */
    const void *sine;
    void *keys;   /* this layer's pool: [block][kv head][unit][head_dim / PAIR][16][PAIR], a unit is 16 tokens */
    void *values; /* [block][kv head][unit][16 / PAIR][head_dim][PAIR] */
    const int64_t *slots;  /* [tokens] */
    const int32_t *tables; /* [sequences, table_stride] blocks */
    const int32_t *items;  /* [items_count, 4]: sequence, first row, tokens, position of the first row */
    int64_t query_stride;
    int64_t kv_stride;
    int64_t table_stride;
    int64_t items_count;
    int64_t tokens;
    int64_t query_heads;
    int64_t kv_heads;
    int64_t head_dim;
    int64_t block_size;
    int64_t window; /* positions that a query sees, its own included; more than any context when it sees all */
    double scale;
    double soft_cap; /* scores become soft_cap * tanh(scale * score / soft_cap); 0 caps nothing */
} attention_arguments;

typedef struct {
    attention_arguments rows; /* its pools hold plain slots, and its `slots` are in them; tables hold packed blocks */
    void *records;            /* this layer's packed blocks: [block][kv head][record_bytes], see packed_codes.h */
    const int32_t *plain_slots; /* [blocks]: where a block is plain */
    const int32_t *filled;      /* [filled_count, 2]: plain slot and block of those that the step fills */
    int64_t filled_count;
    int64_t record_bytes;
    int64_t key_bits;
    int64_t value_bits;
    int64_t sink_blocks; /* first blocks of a sequence, always plain */
} packed_arguments;

typedef struct {
    const void *input;  /* [rows, width] */
    const void *weight; /* [width] */
    void *output;       /* [rows, width] */
    int64_t rows;
    int64_t width;
    double epsilon;
} rms_arguments;

typedef struct {
    float *logits;   /* [rows, width]; `draw` overwrites them */
    int64_t *tokens; /* [rows]: the choice, -1 where the best logit is not finite */
    const float *temperatures; /* these and the following are [rows], for `draw` alone */
    const float *min_ps;
    const double *top_ps;
    const int64_t *top_ks; /* 0 or less keeps all */
    const uint64_t *seeds;
    const int64_t *positions; /* tokens drawn before */
    int64_t rows;
    int64_t width;
} sampling_arguments;
