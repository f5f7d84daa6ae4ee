/*
 * Kernels of the CPU, called from native.py through ctypes, which lets go of the interpreter meanwhile.
 *
 * The threads are those of the OpenMP library that torch brought into the process: a second team beside it would have
 * the two spin against each other. So this is linked to none, and loads only where torch's symbols are visible.
 */
#include <stdlib.h>
#include "calls.h"
#include "vnni.h"

#define EXPORT __attribute__((visibility("default")))

#if defined(__x86_64__)
extern const kernel_table avx512_table, avx2_table;
#elif defined(__aarch64__)
extern const kernel_table neon_table;
#endif

static const kernel_table *table;

EXPORT int ascendd_abi(void) { return ABI; }

static int level;

static int has_avx512(void) {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#else
    return 0;
#endif
}

/*
 * Choose the widest instruction set, or `most` where that is less (1: AVX2 or NEON, 2: AVX-512, 3: with VNNI for int8);
 * 0 where none fits.
 */
EXPORT int ascendd_choose(int most) {
    table = 0;
    level = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (most >= 2 && has_avx512()) {
        table = &avx512_table;
        level = most >= 3 && __builtin_cpu_supports("avx512vnni") ? 3 : 2;
    } else if (most >= 1 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
               __builtin_cpu_supports("f16c")) {
        table = &avx2_table;
        level = 1;
    }
#elif defined(__aarch64__)
    if (most >= 1) {
        table = &neon_table;
        level = 1;
    }
#endif
    return level;
}

/* What was chosen. */
EXPORT int ascendd_level(void) { return level; }

/* Lay `element_bytes` wide weights [num_features, depth] out in panels; `to` holds zeros. */
EXPORT void ascendd_pack(const char *from, char *to, int64_t num_features, int64_t depth, int64_t element_bytes,
                         int num_threads) {
    const int64_t num_panels = (num_features + PANEL - 1) / PANEL;
#pragma omp parallel for num_threads(num_threads) if (num_threads > 1)
    for (int64_t panel = 0; panel < num_panels; panel++) {
        const int64_t first = panel * PANEL, left = num_features - first, num = left < PANEL ? left : PANEL;
        for (int64_t k = 0; k < depth; k++)
            for (int64_t i = 0; i < num; i++) {
                const char *one = from + ((first + i) * depth + k) * element_bytes;
                char *place = to + ((panel * depth + k) * PANEL + i) * element_bytes;
                for (int64_t byte = 0; byte < element_bytes; byte++) place[byte] = one[byte];
            }
    }
}

/* Lay int8 weights [num_features, depth] out for vnni.c; `to` holds bytes of 128. */
EXPORT void ascendd_pack_whole(const uint8_t *from, uint8_t *to, int64_t num_features, int64_t depth, int num_threads) {
    const int64_t num_panels = (num_features + PANEL - 1) / PANEL, wide = (depth + GROUP - 1) / GROUP * GROUP;
#pragma omp parallel for num_threads(num_threads) if (num_threads > 1)
    for (int64_t panel = 0; panel < num_panels; panel++)
        for (int64_t feature = panel * PANEL; feature < num_features && feature < (panel + 1) * PANEL; feature++)
            for (int64_t k = 0; k < depth; k++)
                to[(panel * wide + k / 4 * 4) * PANEL + feature % PANEL * 4 + k % 4] = from[feature * depth + k] ^ 0x80;
}

static void run_panels(const linear_call *call, const whole_call *whole, int64_t row, int64_t last_row, int64_t panel,
                       int64_t last_panel) {
#if defined(__x86_64__)
    if (whole) {
        vnni_linear(whole, row, last_row, panel, last_panel);
        return;
    }
#endif
    table->linear(call, row, last_row, panel, last_panel);
}

/* Have threads take pieces of panels, and of rows where those are many, so that one that is held up holds up little. */
static void share_panels(const linear_call *call, const whole_call *whole, int64_t max_rows, int64_t num_rows,
                         int num_threads) {
    const int64_t at_once = PANEL * PANELS_AT_ONCE;
    const int64_t num_panels = (call->packed->num_features + at_once - 1) / at_once * PANELS_AT_ONCE;
    const int64_t band = max_rows * 8, num_bands = (num_rows + band - 1) / band;
    int64_t piece = num_panels / (num_threads * 6) / 4 * 4;
    if (piece < 4) piece = 4;
    if (num_bands > 1 && piece > 16) piece = 16;
    const int64_t num_pieces = (num_panels + piece - 1) / piece;
    if (num_threads <= 1) {
        run_panels(call, whole, 0, num_rows, 0, num_panels);
        return;
    }
#pragma omp parallel for num_threads(num_threads) schedule(dynamic, 1)
    for (int64_t task = 0; task < num_pieces * num_bands; task++) {
        const int64_t panel = task / num_bands * piece, row = task % num_bands * band;
        const int64_t last_panel = panel + piece < num_panels ? panel + piece : num_panels;
        run_panels(call, whole, row, row + band < num_rows ? row + band : num_rows, panel, last_panel);
    }
}

#if defined(__x86_64__)
static void whole_linear(const linear_call *call, int64_t num_rows, int num_threads) {
    const int64_t depth = call->packed->depth, groups = (depth + GROUP - 1) / GROUP;
    char *room = malloc((size_t)(num_rows * groups) * (GROUP + sizeof(float) + sizeof(int32_t)));
    if (!room) abort();
    float *scales = (float *)room;
    int32_t *starts = (int32_t *)(scales + num_rows * groups);
    int8_t *x = (int8_t *)(starts + num_rows * groups);
#pragma omp parallel for num_threads(num_threads) if (num_threads > 1 && num_rows * depth > 32768)
    for (int64_t row = 0; row < num_rows; row++)
        vnni_quantize(call->x + row * call->x_stride, depth, x + row * groups * GROUP, scales + row * groups,
                      starts + row * groups);
    const whole_call whole = {call->packed, x, scales, starts, call->y, groups};
    share_panels(call, &whole, VNNI_ROWS, num_rows, num_threads);
    free(room);
}
#endif

/* y [num_rows, num_features] = x @ weights.T + bias. */
EXPORT void ascendd_linear(const packed_linear *packed, const float *x, int64_t x_stride, float *y, int64_t num_rows,
                           int num_threads) {
    const linear_call call = {packed, x, y, x_stride};
#if defined(__x86_64__)
    if (packed->format == FORMAT_WHOLE) {
        whole_linear(&call, num_rows, num_threads);
        return;
    }
#endif
    share_panels(&call, 0, table->max_rows, num_rows, num_threads);
}

/* Number of pieces of `size` in `all`. */
static int64_t pieces(int64_t all, int64_t size) { return (all + size - 1) / size; }

/*
 * A piece of work is a KV head of a sequence with one new token, or where those are few a part of its query heads; of a
 * prompt it is a KV head at some neighbouring positions. Late positions see most and come first.
 */
EXPORT void ascendd_attention(const attention_call *call, int64_t num_sequences, int num_threads) {
    const int64_t kv_heads = call->kv_heads, group = call->num_heads / kv_heads;
    int64_t part = group < 16 ? group : 16, num_pieces = 0;
    const int64_t prompt_part = part, positions = PROMPT_ROWS / prompt_part;
    const int64_t prompt_heads = kv_heads * pieces(group, prompt_part);
    while (part > 1 && num_sequences * kv_heads * pieces(group, part) < 4 * num_threads) part = (part + 1) / 2;
    const int64_t heads = kv_heads * pieces(group, part);
    int64_t *firsts = malloc((size_t)(num_sequences + 1) * sizeof(int64_t)); /* piece with which a sequence begins */
    if (!firsts) abort();
    for (int64_t i = 0; i < num_sequences; i++) {
        const int64_t count = call->ends[i] - (i ? call->ends[i - 1] : 0);
        firsts[i] = num_pieces;
        num_pieces += count == 1 ? heads : prompt_heads * pieces(count, positions);
    }
    firsts[num_sequences] = num_pieces;
#pragma omp parallel for num_threads(num_threads) schedule(dynamic, 1) if (num_threads > 1)
    for (int64_t turn = 0; turn < num_pieces; turn++) {
        const int64_t task = num_pieces - 1 - turn; /* prompts stand behind the others */
        int64_t low = 0, high = num_sequences;
        while (high - low > 1) {
            const int64_t middle = (low + high) / 2;
            if (firsts[middle] <= task) low = middle; else high = middle;
        }
        const int64_t begin = low ? call->ends[low - 1] : 0, end = call->ends[low], local = task - firsts[low];
        const int64_t width = end - begin == 1 ? part : prompt_part, num_parts = pieces(group, width);
        const int64_t kv_head = local / num_parts % kv_heads, first = local % num_parts * width;
        const int num = (int)(group - first < width ? group - first : width);
        if (end - begin == 1) {
            table->attend(call, low, kv_head, kv_head * group + first, num);
            continue;
        }
        const int64_t row = begin + local / prompt_heads * positions;
        table->attend_prompt(call, call->block_table + low * call->table_width, row,
                             row + positions < end ? row + positions : end, call->lengths[low] - end + row, kv_head,
                             kv_head * group + first, num);
    }
    free(firsts);
}

/* Rows that are too little for a second thread stay with the first. */
#define SHARED(floats) (num_threads > 1 && (floats) > 32768)

EXPORT void ascendd_norm(const float *x, int64_t x_stride, float *residual, const float *weight, float eps, float *y,
                         int64_t num_rows, int64_t dim, int num_threads) {
#pragma omp parallel for num_threads(num_threads) if (SHARED(num_rows * dim))
    for (int64_t row = 0; row < num_rows; row++)
        table->norm(x + row * x_stride, residual ? residual + row * dim : 0, weight, eps, y + row * dim, dim);
}

EXPORT void ascendd_gate(const float *x, float *y, int64_t num_rows, int64_t dim, int num_threads) {
#pragma omp parallel for num_threads(num_threads) if (SHARED(num_rows * dim))
    for (int64_t row = 0; row < num_rows; row++)
        table->gate(x + row * 2 * dim, x + row * 2 * dim + dim, y + row * dim, dim);
}

/* Rotate the heads of each row of x, side by side, in place; cos and sin [num_rows, head_dim]. */
EXPORT void ascendd_rotate(float *x, int64_t x_stride, const float *cosine, const float *sine, int64_t num_rows,
                           int64_t num_heads, int64_t head_dim, int num_threads) {
#pragma omp parallel for num_threads(num_threads) if (SHARED(num_rows * num_heads * head_dim))
    for (int64_t row = 0; row < num_rows; row++)
        for (int64_t head = 0; head < num_heads; head++)
            table->rotate(x + row * x_stride + head * head_dim, cosine + row * head_dim, sine + row * head_dim,
                          head_dim / 2);
}

EXPORT void ascendd_store(const store_call *call) { table->store(call); }
