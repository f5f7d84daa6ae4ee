/*
 * y = x @ w.T with int8 weights, multiplied as whole numbers, for cores with AVX-512 VNNI.
 *
 * Each GROUP of a row of x becomes int8 with a scale of its own, so that an outlier coarsens its neighbours alone. The
 * instruction takes one side without a sign: weights are stored 128 too high, and a group's sum starts at -128 times the
 * sum of its x, which brings that back. A row's result does not depend on the rows beside it.
 */
#if defined(__x86_64__)
#pragma GCC optimize("O2", "no-math-errno", "no-trapping-math")
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma")
#include <immintrin.h>
#include <string.h>
#include "vnni.h"

#define INLINE static inline __attribute__((always_inline))
#define WIDE 2 /* panels that a tile of several rows takes at once */

void vnni_quantize(const float *x, int64_t depth, int8_t *to, float *scales, int32_t *starts) {
    for (int64_t begin = 0; begin < depth; begin += GROUP, to += GROUP, scales++, starts++) {
        __m512 values[GROUP / PANEL];
        __m512i most = _mm512_setzero_si512(), sum = most;
        for (int i = 0; i < GROUP / PANEL; i++) {
            const int64_t left = depth - begin - i * PANEL;
            const __mmask16 mask = left >= PANEL ? 0xFFFF : left <= 0 ? 0 : (__mmask16)((1 << left) - 1);
            values[i] = _mm512_maskz_loadu_ps(mask, x + begin + i * PANEL);
            /* As whole numbers, among which what is not a number is the largest, so that it is not lost. */
            most = _mm512_max_epu32(most, _mm512_and_si512(_mm512_castps_si512(values[i]), _mm512_set1_epi32(0x7FFFFFFF)));
        }
        const uint32_t bits = _mm512_reduce_max_epu32(most);
        float largest;
        memcpy(&largest, &bits, 4);
        /* Below this 127 / largest is infinite; such a group counts as zeros. */
        const __m512 factor = _mm512_set1_ps(largest < 1e-36f ? 0.0f : 127.0f / largest);
        for (int i = 0; i < GROUP / PANEL; i++) {
            const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(values[i], factor));
            sum = _mm512_add_epi32(sum, whole);
            _mm_storeu_si128((__m128i *)(to + i * PANEL), _mm512_cvtsepi32_epi8(whole));
        }
        *scales = largest / 127.0f;
        *starts = -128 * _mm512_reduce_add_epi32(sum);
    }
}

INLINE void tile(const whole_call *call, const int rows, const int panels, int64_t row, int64_t panel) {
    const packed_linear *packed = call->packed;
    const int64_t groups = call->num_groups;
    const uint8_t *weights = (const uint8_t *)packed->weights + panel * groups * GROUP * PANEL;
    const int8_t *x = call->x + row * groups * GROUP;
    const float *scales = call->scales + row * groups;
    const int32_t *starts = call->starts + row * groups;
    __m512 sums[VNNI_ROWS][PANELS_AT_ONCE];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++) sums[i][p] = _mm512_setzero_ps();
    for (int64_t group = 0; group < groups; group++) {
        __m512i parts[VNNI_ROWS][PANELS_AT_ONCE];
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
            for (int p = 0; p < panels; p++) parts[i][p] = _mm512_set1_epi32(starts[i * groups + group]);
        for (int64_t k = group * GROUP; k < (group + 1) * GROUP; k += 4) {
            __m512i w[PANELS_AT_ONCE];
#pragma GCC unroll 4
            for (int p = 0; p < panels; p++)
                w[p] = _mm512_loadu_si512(weights + (p * groups * GROUP + k) * PANEL);
#pragma GCC unroll 8
            for (int i = 0; i < rows; i++) {
                int32_t four;
                memcpy(&four, x + i * groups * GROUP + k, 4);
#pragma GCC unroll 4
                for (int p = 0; p < panels; p++)
                    parts[i][p] = _mm512_dpbusd_epi32(parts[i][p], w[p], _mm512_set1_epi32(four));
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
            for (int p = 0; p < panels; p++)
                sums[i][p] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(parts[i][p]), _mm512_set1_ps(scales[i * groups + group]),
                                             sums[i][p]);
    }
#pragma GCC unroll 4
    for (int p = 0; p < panels; p++) {
        const int64_t feature = (panel + p) * PANEL, left = packed->num_features - feature;
        if (left <= 0) break;
        const __mmask16 mask = left >= PANEL ? 0xFFFF : (__mmask16)((1 << left) - 1);
        const __m512 scale = _mm512_loadu_ps(packed->scales + feature);
        const __m512 bias = packed->bias ? _mm512_loadu_ps(packed->bias + feature) : _mm512_setzero_ps();
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++)
            _mm512_mask_storeu_ps(call->y + (row + i) * packed->num_features + feature, mask,
                                  _mm512_fmadd_ps(sums[i][p], scale, bias));
    }
}

#define TILE(ROWS) \
    case ROWS: tile(call, ROWS, WIDE, row, panel); break;

void vnni_linear(const whole_call *call, int64_t first_row, int64_t last_row, int64_t first_panel, int64_t last_panel) {
    const int64_t num_rows = last_row - first_row, num_tiles = (num_rows + VNNI_ROWS - 1) / VNNI_ROWS;
    if (num_rows == 1) { /* a lone row needs many sums in flight to keep up with memory */
        for (int64_t panel = first_panel; panel < last_panel; panel += PANELS_AT_ONCE)
            tile(call, 1, PANELS_AT_ONCE, first_row, panel);
        return;
    }
    for (int64_t panel = first_panel; panel < last_panel; panel += WIDE)
        for (int64_t i = 0; i < num_tiles; i++) {
            const int64_t row = first_row + num_rows * i / num_tiles;
            switch (first_row + num_rows * (i + 1) / num_tiles - row) {
                TILE(1) TILE(2) TILE(3) TILE(4) TILE(5) TILE(6)
            }
        }
}
#endif
