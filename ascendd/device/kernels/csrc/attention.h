/*
 * Attention of one new token over a paged cache, blocks read where they lie. Included once per instruction set.
 *
 * Flash-decode: scores of one block at a time, with the running maximum and sum of each head beside its output, which
 * is rescaled only where a block brings a new maximum. The query heads of a group share what is read.
 */

#define MAX_BLOCK 128 /* tokens in a block; device facts offer no more */
#define MAX_GROUP 16  /* query heads that one pass takes */

/* `num` heads from `head` on, all of KV head `kv_head`, for sequence `index`. head_dim is a multiple of LANES. */
INLINE void attend_part(const attention_call *call, const int format, int64_t index, int64_t kv_head, int64_t head,
                        int num) {
    const int64_t dim = call->head_dim, size = call->block_size, length = call->lengths[index];
    const int64_t row = call->ends[index] - 1, block = size * dim;
    const int64_t element = format == FORMAT_FLOAT32 ? 4 : 2;
    const float *query = call->query + row * call->query_stride + head * dim;
    float *out = call->out + (row * call->num_heads + head) * dim;
    const int32_t *table = call->block_table + index * call->table_width;
    const char *all_keys = call->cache + kv_head * call->num_blocks * block * element;
    const char *all_values = all_keys + call->kv_heads * call->num_blocks * block * element;
    float scores[MAX_GROUP][MAX_BLOCK], maxima[MAX_GROUP], sums[MAX_GROUP];
    for (int i = 0; i < num; i++) {
        maxima[i] = -INFINITY;
        sums[i] = 0.0f;
    }
    memset(out, 0, (size_t)(num * dim) * sizeof(float));
    for (int64_t begin = 0; begin < length; begin += size) {
        const int64_t left = length - begin, offset = table[begin / size] * block * element;
        const int count = (int)(left < size ? left : size), padded = (count + LANES - 1) / LANES * LANES;
        const void *keys = all_keys + offset, *values = all_values + offset;
        if (begin + size < length) { /* the next block's place is no pattern that the core could foresee */
            const int64_t next = table[begin / size + 1] * block * element;
            for (int64_t at = 0; at < block * element; at += 64) {
                __builtin_prefetch(all_keys + next + at);
                __builtin_prefetch(all_values + next + at);
            }
        }
        for (int i = 0; i < num; i++) {
            const float *q = query + i * dim;
            float most = maxima[i];
            int token = 0;
            for (; token + 4 <= count; token += 4) { /* four sums, since one would wait for itself */
                vec a = {0}, b = {0}, c = {0}, d = {0};
                for (int64_t at = 0; at < dim; at += LANES) {
                    const vec part = load(q + at);
                    a += part * load_weights(keys, token * dim + at, format);
                    b += part * load_weights(keys, (token + 1) * dim + at, format);
                    c += part * load_weights(keys, (token + 2) * dim + at, format);
                    d += part * load_weights(keys, (token + 3) * dim + at, format);
                }
                scores[i][token] = total(a);
                scores[i][token + 1] = total(b);
                scores[i][token + 2] = total(c);
                scores[i][token + 3] = total(d);
            }
            for (; token < count; token++) {
                vec a = {0};
                for (int64_t at = 0; at < dim; at += LANES)
                    a += load(q + at) * load_weights(keys, token * dim + at, format);
                scores[i][token] = total(a);
            }
            for (token = 0; token < count; token++) {
                scores[i][token] *= call->scale;
                most = scores[i][token] > most ? scores[i][token] : most;
            }
            for (token = count; token < padded; token++) scores[i][token] = -INFINITY;
            if (most > maxima[i]) {
                const float factor = expf(maxima[i] - most);
                sums[i] *= factor;
                for (int64_t at = 0; at < dim; at += LANES) store(out + i * dim + at, load(out + i * dim + at) * factor);
                maxima[i] = most;
            }
            vec sum = {0};
            for (token = 0; token < padded; token += LANES) {
                const vec weight = exponential(load(&scores[i][token]) - most);
                store(&scores[i][token], weight);
                sum += weight;
            }
            sums[i] += total(sum);
        }
        for (int i = 0; i < num; i++) {
            float *to = out + i * dim;
            int64_t at = 0;
            for (; at + 4 * LANES <= dim; at += 4 * LANES) {
                vec a = load(to + at), b = load(to + at + LANES), c = load(to + at + 2 * LANES),
                    d = load(to + at + 3 * LANES);
                for (int token = 0; token < count; token++) {
                    const vec weight = spread(scores[i][token]);
                    a += weight * load_weights(values, token * dim + at, format);
                    b += weight * load_weights(values, token * dim + at + LANES, format);
                    c += weight * load_weights(values, token * dim + at + 2 * LANES, format);
                    d += weight * load_weights(values, token * dim + at + 3 * LANES, format);
                }
                store(to + at, a);
                store(to + at + LANES, b);
                store(to + at + 2 * LANES, c);
                store(to + at + 3 * LANES, d);
            }
            for (; at < dim; at += LANES) {
                vec a = load(to + at);
                for (int token = 0; token < count; token++)
                    a += spread(scores[i][token]) * load_weights(values, token * dim + at, format);
                store(to + at, a);
            }
        }
    }
    for (int i = 0; i < num; i++)
        for (int64_t at = 0; at < dim; at += LANES) store(out + i * dim + at, load(out + i * dim + at) / sums[i]);
}

static void ISA(attend)(const attention_call *call, int64_t index, int64_t kv_head, int64_t head, int num) {
    if (call->format == FORMAT_FLOAT32)
        attend_part(call, FORMAT_FLOAT32, index, kv_head, head, num);
    else if (call->format == FORMAT_FLOAT16)
        attend_part(call, FORMAT_FLOAT16, index, kv_head, head, num);
    else
        attend_part(call, FORMAT_BFLOAT16, index, kv_head, head, num);
}

INLINE void store_part(const store_call *call, const int format) {
    const int64_t dim = call->head_dim, values = call->kv_heads * call->num_slots * dim;
    for (int64_t row = 0; row < call->num_rows; row++)
        for (int64_t head = 0; head < call->kv_heads; head++) {
            const int64_t to = (head * call->num_slots + call->slots[row]) * dim;
            const float *key = call->key + row * call->key_stride + head * dim;
            const float *value = call->value + row * call->value_stride + head * dim;
            for (int64_t at = 0; at < dim; at += LANES) {
                store_as(call->cache, to + at, load(key + at), format);
                store_as(call->cache, values + to + at, load(value + at), format);
            }
        }
}

/* Write keys and values of new tokens into their slots. head_dim is a multiple of LANES. */
static void ISA(store)(const store_call *call) {
    if (call->format == FORMAT_FLOAT32)
        store_part(call, FORMAT_FLOAT32);
    else if (call->format == FORMAT_FLOAT16)
        store_part(call, FORMAT_FLOAT16);
    else
        store_part(call, FORMAT_BFLOAT16);
}
