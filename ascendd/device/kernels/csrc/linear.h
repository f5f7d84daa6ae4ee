/*
 * y = x @ w.T for weights packed in panels of PANEL output features. Included once per instruction set.
 *
 * A tile keeps the sums of some rows and panels in registers over all input features, so that weights are read once per
 * MAX_ROWS rows, in the order in which they lie in memory.
 */

/* Beyond this many input features a tile's weights leave the second-level cache; the sums wait in y between parts. */
#define MAX_DEPTH 2048

/* Put sums [rows][panels * PANEL] into y: added to what is there unless `is_first`, scaled and shifted if `is_last`. */
static __attribute__((noinline)) void finish(const linear_call *call, const float *sums, int rows, int panels,
                                             int64_t row, int64_t panel, int is_first, int is_last) {
    const packed_linear *packed = call->packed;
    const int64_t feature = panel * PANEL, left = packed->num_features - feature, width = panels * PANEL;
    const int64_t num = left < width ? left : width;
    for (int i = 0; i < rows; i++, sums += width) {
        float *out = call->y + (row + i) * packed->num_features + feature;
        int64_t column = 0;
        for (; column + LANES <= num; column += LANES) {
            vec sum = load(sums + column);
            if (!is_first) sum += load(out + column);
            if (is_last && packed->scales) sum *= load(packed->scales + feature + column);
            if (is_last && packed->bias) sum += load(packed->bias + feature + column);
            store(out + column, sum);
        }
        for (; column < num; column++) {
            float sum = is_first ? sums[column] : sums[column] + out[column];
            if (is_last && packed->scales) sum *= packed->scales[feature + column];
            if (is_last && packed->bias) sum += packed->bias[feature + column];
            out[column] = sum;
        }
    }
}

INLINE void tile(const linear_call *call, const int rows, const int panels, const int format, int64_t row,
                 int64_t panel, int64_t begin, int64_t end) {
    const int parts = panels * PARTS;
    const int64_t depth = call->packed->depth, stride = call->x_stride;
    const void *weights = call->packed->weights;
    const float *x = call->x + row * stride;
    vec sums[MAX_ROWS][PANELS_AT_ONCE * PARTS];
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 16
        for (int part = 0; part < parts; part++) sums[i][part] = (vec){0};
    for (int64_t k = begin; k < end; k++) {
        vec w[PANELS_AT_ONCE * PARTS];
#pragma GCC unroll 16
        for (int part = 0; part < parts; part++)
            w[part] = load_weights(weights, ((panel + part / PARTS) * depth + k) * PANEL + (part % PARTS) * LANES, format);
#pragma GCC unroll 12
        for (int i = 0; i < rows; i++) {
            vec value = spread(x[i * stride + k]);
#pragma GCC unroll 16
            for (int part = 0; part < parts; part++) sums[i][part] += value * w[part];
        }
    }
    float lines[MAX_ROWS * PANELS_AT_ONCE * PANEL];
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 16
        for (int part = 0; part < parts; part++) store(lines + (i * parts + part) * LANES, sums[i][part]);
    finish(call, lines, rows, panels, row, panel, begin == 0, end == depth);
}

#define TILE(ROWS) \
    case ROWS: tile(call, ROWS, WIDE, format, row, panel, begin, end); break;

/* Rows [row, last_row) of panels [panel, last_panel), a multiple of PANELS_AT_ONCE. */
INLINE void linear_part(const linear_call *call, const int format, int64_t first_row, int64_t last_row,
                        int64_t first_panel, int64_t last_panel) {
    const int64_t num_rows = last_row - first_row, num_tiles = (num_rows + MAX_ROWS - 1) / MAX_ROWS;
    const int64_t depth = call->packed->depth;
    for (int64_t begin = 0; begin < depth; begin += MAX_DEPTH) {
        const int64_t end = begin + MAX_DEPTH < depth ? begin + MAX_DEPTH : depth;
        if (num_rows == 1) { /* a lone row needs many sums in flight to keep up with memory */
            for (int64_t panel = first_panel; panel < last_panel; panel += PANELS_AT_ONCE)
                tile(call, 1, PANELS_AT_ONCE, format, first_row, panel, begin, end);
            continue;
        }
        for (int64_t panel = first_panel; panel < last_panel; panel += WIDE)
            for (int64_t i = 0; i < num_tiles; i++) {
                const int64_t row = first_row + num_rows * i / num_tiles;
                switch (first_row + num_rows * (i + 1) / num_tiles - row) {
                    TILE(1) TILE(2) TILE(3) TILE(4) TILE(5)
#if MAX_ROWS > 5
                    TILE(6)
#endif
#if MAX_ROWS > 6
                    TILE(7) TILE(8) TILE(9) TILE(10) TILE(11) TILE(12)
#endif
                }
            }
    }
}

static void ISA(linear)(const linear_call *call, int64_t row, int64_t last_row, int64_t panel, int64_t last_panel) {
    if (call->packed->format == FORMAT_FLOAT32)
        linear_part(call, FORMAT_FLOAT32, row, last_row, panel, last_panel);
    else if (call->packed->format == FORMAT_FLOAT16)
        linear_part(call, FORMAT_FLOAT16, row, last_row, panel, last_panel);
    else
        linear_part(call, FORMAT_INT8, row, last_row, panel, last_panel);
}
