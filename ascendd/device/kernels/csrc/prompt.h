/*
 * Attention of a prompt's new tokens over a paged cache that holds them already. Included once per instruction set.
 *
 * Query heads of a group at neighbouring positions are the rows of one piece of work, so that a tile of keys is turned
 * round once for all of them; scores and outputs then are small products with their sums in registers, as in linear.h.
 */

#define PROMPT_TOKENS 32 /* keys of a tile */
#define MAX_HEAD_DIM 256
#define PROMPT_PARTS (PROMPT_TOKENS / LANES)
#if LANES == 4
#define SCORE_PARTS 4 /* vectors of scores at once; with SCORE_ROWS they fill the registers */
#else
#define SCORE_PARTS 2
#endif
#define SCORE_ROWS MAX_ROWS
#define OUT_ROWS (LANES == 16 ? 6 : 3)
#define OUT_PARTS 4

typedef struct {
    const float *query[PROMPT_ROWS];
    float *out[PROMPT_ROWS];
    int64_t last[PROMPT_ROWS]; /* the last token that a row sees */
    float maxima[PROMPT_ROWS], sums[PROMPT_ROWS];
    float scores[PROMPT_ROWS][PROMPT_TOKENS];
    float keys[MAX_HEAD_DIM][PROMPT_TOKENS]; /* turned round: one dimension of all tokens side by side */
} prompt_work;

INLINE void score_rows(prompt_work *work, int row, const int rows, int64_t dim, float scale) {
    for (int part = 0; part < PROMPT_PARTS; part += SCORE_PARTS) {
        vec sums[SCORE_ROWS][SCORE_PARTS];
#pragma GCC unroll 12
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
            for (int j = 0; j < SCORE_PARTS; j++) sums[i][j] = (vec){0};
        for (int64_t at = 0; at < dim; at++) {
            vec keys[SCORE_PARTS];
#pragma GCC unroll 4
            for (int j = 0; j < SCORE_PARTS; j++) keys[j] = load(&work->keys[at][(part + j) * LANES]);
#pragma GCC unroll 12
            for (int i = 0; i < rows; i++) {
                const vec value = spread(work->query[row + i][at]);
#pragma GCC unroll 4
                for (int j = 0; j < SCORE_PARTS; j++) sums[i][j] += value * keys[j];
            }
        }
#pragma GCC unroll 12
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
            for (int j = 0; j < SCORE_PARTS; j++) store(&work->scores[row + i][(part + j) * LANES], sums[i][j] * scale);
    }
}

INLINE void weigh_rows(prompt_work *work, int row, const int rows, const char *values, const int64_t *places, int count,
                       int64_t begin, int64_t end, const int format) {
    vec sums[OUT_ROWS][OUT_PARTS];
    const int parts = (int)((end - begin) / LANES);
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < OUT_PARTS; j++)
            sums[i][j] = j < parts ? load(work->out[row + i] + begin + j * LANES) : (vec){0};
    for (int token = 0; token < count; token++) {
        vec value[OUT_PARTS];
#pragma GCC unroll 4
        for (int j = 0; j < OUT_PARTS; j++)
            value[j] = load_weights(values, places[token] + begin + (j < parts ? j : 0) * LANES, format);
#pragma GCC unroll 6
        for (int i = 0; i < rows; i++) {
            const vec weight = spread(work->scores[row + i][token]);
#pragma GCC unroll 4
            for (int j = 0; j < OUT_PARTS; j++) sums[i][j] += weight * value[j];
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < OUT_PARTS; j++)
            if (j < parts) store(work->out[row + i] + begin + j * LANES, sums[i][j]);
}

/* Make weights of a row's scores and bring what the row gathered so far to the new maximum. */
INLINE void soften(prompt_work *work, int row, int64_t first, int count, int64_t dim) {
    float *scores = work->scores[row];
    const int64_t seen = work->last[row] + 1 - first;
    for (int token = seen < 0 ? 0 : seen < count ? (int)seen : count; token < PROMPT_TOKENS; token++)
        scores[token] = -INFINITY;
    vec most = load(scores);
    for (int token = LANES; token < PROMPT_TOKENS; token += LANES) {
        const vec other = load(scores + token);
        const ivec is_more = other > most;
        most = (vec)(((ivec)other & is_more) | ((ivec)most & ~is_more));
    }
    float best = work->maxima[row];
    for (int i = 0; i < LANES; i++) best = most[i] > best ? most[i] : best;
    if (best > work->maxima[row]) {
        const float factor = expf(work->maxima[row] - best);
        work->sums[row] *= factor;
        for (int64_t at = 0; at < dim; at += LANES) store(work->out[row] + at, load(work->out[row] + at) * factor);
        work->maxima[row] = best;
    }
    vec sum = {0};
    for (int token = 0; token < PROMPT_TOKENS; token += LANES) {
        const vec weight = exponential(load(scores + token) - best);
        store(scores + token, weight);
        sum += weight;
    }
    work->sums[row] += total(sum);
}

/* Heads [head, head + num) of one KV head for rows [row, last_row) of the flat batch; `start` is the position of `row`. */
INLINE void prompt_part(const attention_call *call, const int format, const int32_t *table, int64_t row,
                        int64_t last_row, int64_t start, int64_t kv_head, int64_t head, int num) {
    prompt_work work;
    const int64_t dim = call->head_dim, size = call->block_size, block = size * dim;
    const int64_t element = format == FORMAT_FLOAT32 ? 4 : 2, length = start + last_row - row;
    const char *keys = call->cache + kv_head * call->num_blocks * block * element;
    const char *values = keys + call->kv_heads * call->num_blocks * block * element;
    int rows = 0;
    for (int64_t at = row; at < last_row; at++)
        for (int i = 0; i < num; i++, rows++) {
            work.query[rows] = call->query + at * call->query_stride + (head + i) * dim;
            work.out[rows] = call->out + (at * call->num_heads + head + i) * dim;
            work.last[rows] = start + at - row;
            work.maxima[rows] = -INFINITY;
            work.sums[rows] = 0.0f;
            memset(work.out[rows], 0, (size_t)dim * sizeof(float));
        }
    for (int64_t first = 0; first < length; first += PROMPT_TOKENS) {
        const int count = (int)(length - first < PROMPT_TOKENS ? length - first : PROMPT_TOKENS);
        int64_t places[PROMPT_TOKENS];
        for (int token = 0; token < PROMPT_TOKENS; token++) {
            const int64_t at = first + (token < count ? token : 0);
            places[token] = table[at / size] * block + at % size * dim;
        }
        for (int token = 0; token < PROMPT_TOKENS; token += 4)
            for (int64_t at = 0; at < dim; at += LANES) {
                const vec a = load_weights(keys, places[token] + at, format);
                const vec b = load_weights(keys, places[token + 1] + at, format);
                const vec c = load_weights(keys, places[token + 2] + at, format);
                const vec d = load_weights(keys, places[token + 3] + at, format);
                for (int i = 0; i < LANES; i++) {
                    float *to = &work.keys[at + i][token];
                    to[0] = a[i], to[1] = b[i], to[2] = c[i], to[3] = d[i];
                }
            }
        int at = 0;
        for (; at + SCORE_ROWS <= rows; at += SCORE_ROWS) score_rows(&work, at, SCORE_ROWS, dim, call->scale);
        for (; at + 3 <= rows; at += 3) score_rows(&work, at, 3, dim, call->scale);
        for (; at < rows; at++) score_rows(&work, at, 1, dim, call->scale);
        for (int i = 0; i < rows; i++) soften(&work, i, first, count, dim);
        for (int64_t begin = 0; begin < dim; begin += OUT_PARTS * LANES) {
            const int64_t end = begin + OUT_PARTS * LANES < dim ? begin + OUT_PARTS * LANES : dim;
            for (at = 0; at + OUT_ROWS <= rows; at += OUT_ROWS)
                weigh_rows(&work, at, OUT_ROWS, values, places, count, begin, end, format);
            for (; at < rows; at++) weigh_rows(&work, at, 1, values, places, count, begin, end, format);
        }
    }
    for (int i = 0; i < rows; i++)
        for (int64_t at = 0; at < dim; at += LANES) store(work.out[i] + at, load(work.out[i] + at) / work.sums[i]);
}

static void ISA(attend_prompt)(const attention_call *call, const int32_t *table, int64_t row, int64_t last_row,
                               int64_t start, int64_t kv_head, int64_t head, int num) {
    if (call->format == FORMAT_FLOAT32)
        prompt_part(call, FORMAT_FLOAT32, table, row, last_row, start, kv_head, head, num);
    else if (call->format == FORMAT_FLOAT16)
        prompt_part(call, FORMAT_FLOAT16, table, row, last_row, start, kv_head, head, num);
    else
        prompt_part(call, FORMAT_BFLOAT16, table, row, last_row, start, kv_head, head, num);
}
