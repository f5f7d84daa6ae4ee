/* Norm, gate and rotation of one row each. Included once per instruction set. */

/* y = (x + residual) / rms * weight and residual += x; without a residual y = x / rms * weight. */
static void ISA(norm)(const float *x, float *residual, const float *weight, float eps, float *y, int64_t dim) {
    vec squares = {0};
    float rest = 0.0f;
    const float *sums = residual ? residual : x;
    int64_t at = 0;
    for (; at + LANES <= dim; at += LANES) {
        vec value = load(x + at);
        if (residual) store(residual + at, value += load(residual + at));
        squares += value * value;
    }
    for (; at < dim; at++) {
        float value = x[at];
        if (residual) residual[at] = value += residual[at];
        rest += value * value;
    }
    const float factor = 1.0f / sqrtf((total(squares) + rest) / (float)dim + eps);
    for (at = 0; at + LANES <= dim; at += LANES) store(y + at, load(sums + at) * factor * load(weight + at));
    for (; at < dim; at++) y[at] = sums[at] * factor * weight[at];
}

/* y = silu(gate) * up. */
static void ISA(gate)(const float *gate, const float *up, float *y, int64_t dim) {
    int64_t at = 0;
    for (; at + LANES <= dim; at += LANES) {
        vec value = load(gate + at);
        vec bounded = -value;
        ivec is_far = bounded > 80.0f; /* exp would leave float32; the quotient is 0 long before */
        bounded = (vec)(((ivec)spread(80.0f) & is_far) | ((ivec)bounded & ~is_far));
        store(y + at, value / (exponential(bounded) + 1.0f) * load(up + at));
    }
    for (; at < dim; at++) y[at] = gate[at] / (1.0f + expf(-gate[at])) * up[at];
}

/* Rotate the halves of one head in place; cos and sin hold the first half's angles. */
static void ISA(rotate)(float *x, const float *cosine, const float *sine, int64_t half) {
    int64_t at = 0;
    for (; at + LANES <= half; at += LANES) {
        vec a = load(x + at), b = load(x + half + at), c = load(cosine + at), s = load(sine + at);
        store(x + at, a * c - b * s);
        store(x + half + at, b * c + a * s);
    }
    for (; at < half; at++) {
        const float a = x[at], b = x[half + at];
        x[at] = a * cosine[at] - b * sine[at];
        x[half + at] = b * cosine[at] + a * sine[at];
    }
}
