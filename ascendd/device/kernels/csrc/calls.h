/* What kernels are called with, alike for every instruction set. */
#ifndef ASCENDD_CALLS_H
#define ASCENDD_CALLS_H
#include <stdint.h>

/* What native_library.py must agree with: raised at every change of a structure or of an exported function. */
#define ABI 3

#define PANEL 16          /* output features that lie side by side in packed weights */
#define PROMPT_ROWS 48    /* rows of attention that a piece of work holds: heads of one group at some positions */
#define PANELS_AT_ONCE 4  /* their number is a multiple of this, the last ones filled up with zeros */

enum { FORMAT_FLOAT32 = 0, FORMAT_FLOAT16 = 1, FORMAT_INT8 = 2, FORMAT_BFLOAT16 = 3, FORMAT_WHOLE = 4 };

/* A packed projection; native.py builds the same structure. */
typedef struct {
    const void *weights; /* [panels][depth][PANEL] of the format; FORMAT_WHOLE: see vnni.h */
    const float *scales, *bias; /* of whole panels; scales for int8 and whole, bias may be NULL */
    int64_t num_features, depth, format;
} packed_linear;

typedef struct {
    const packed_linear *packed;
    const float *x; /* row r at x + r * x_stride */
    float *y;       /* [rows, num_features] */
    int64_t x_stride;
} linear_call;

typedef struct {
    const float *query; /* row r at query + r * query_stride, heads side by side */
    const char *cache; /* [2, kv_heads, num_blocks, block_size, head_dim] of a float format, K then V */
    const int32_t *block_table; /* [num_sequences, table_width] */
    const int64_t *lengths, *ends; /* of each sequence: tokens in the cache, and rows of the flat batch up to its last */
    float *out; /* [num_tokens, heads, head_dim] */
    int64_t query_stride, table_width, num_heads, kv_heads, head_dim, num_blocks, block_size, format;
    float scale;
} attention_call;

typedef struct {
    const float *key, *value; /* row r at key + r * key_stride, heads side by side */
    void *cache; /* [2, kv_heads, num_slots, head_dim] of a float format */
    const int64_t *slots;
    int64_t key_stride, value_stride, num_rows, kv_heads, num_slots, head_dim, format;
} store_call;

typedef struct {
    /* Rows [row, last_row) of panels [panel, last_panel). */
    void (*linear)(const linear_call *call, int64_t row, int64_t last_row, int64_t panel, int64_t last_panel);
    /* `num` query heads from `head` on, all of one KV head, of sequence `index`. */
    void (*attend)(const attention_call *call, int64_t index, int64_t kv_head, int64_t head, int num);
    /* The same heads for rows [row, last_row) of one sequence with block table `table`; `start` is the position of `row`. */
    void (*attend_prompt)(const attention_call *call, const int32_t *table, int64_t row, int64_t last_row, int64_t start,
                          int64_t kv_head, int64_t head, int num);
    void (*norm)(const float *x, float *residual, const float *weight, float eps, float *y, int64_t dim);
    void (*gate)(const float *gate, const float *up, float *y, int64_t dim);
    void (*rotate)(float *x, const float *cosine, const float *sine, int64_t half);
    void (*store)(const store_call *call);
    int64_t max_rows; /* that one pass over the weights serves */
} kernel_table;
#endif
