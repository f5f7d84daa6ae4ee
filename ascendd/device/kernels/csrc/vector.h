/* One vector type per instruction set, chosen by the file that includes this: ISA_AVX512, ISA_AVX2 or ISA_NEON. */
#include <stdint.h>
#include <string.h>
#include "calls.h"

#if defined(ISA_AVX512)
#include <immintrin.h>
#define LANES 16
#define MAX_ROWS 12
#define WIDE 2 /* panels that a tile of many rows takes at once */
#elif defined(ISA_AVX2)
#include <immintrin.h>
#define LANES 8
#define MAX_ROWS 6
#define WIDE 1
#elif defined(ISA_NEON)
#include <arm_neon.h>
#define LANES 4
#define MAX_ROWS 5
#define WIDE 1
#endif

#define PARTS (PANEL / LANES) /* vectors that hold a panel's row */
#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef float vec_unaligned __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));

INLINE vec load(const float *from) { return *(const vec_unaligned *)from; }
INLINE void store(float *to, vec value) { *(vec_unaligned *)to = value; }
INLINE vec spread(float value) { return value - (vec){0}; }

INLINE float total(vec value) {
    float sum = 0.0f;
    for (int i = 0; i < LANES; i++) sum += value[i];
    return sum;
}

/* LANES weights of a format, `index` counted in elements from `from`, as float32. */
INLINE vec load_weights(const void *from, int64_t index, const int format) {
    if (format == FORMAT_FLOAT32) return load((const float *)from + index);
    if (format == FORMAT_FLOAT16) {
        const uint16_t *halves = (const uint16_t *)from + index;
#if defined(ISA_AVX512)
        return (vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)halves));
#elif defined(ISA_AVX2)
        return (vec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)halves));
#else
        return (vec)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(halves)));
#endif
    }
    if (format == FORMAT_BFLOAT16) {
        ivec bits = {0};
        const uint16_t *halves = (const uint16_t *)from + index;
        for (int i = 0; i < LANES; i++) bits[i] = (int32_t)((uint32_t)halves[i] << 16);
        return (vec)bits;
    }
    const int8_t *bytes = (const int8_t *)from + index;
#if defined(ISA_AVX512)
    return (vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)bytes)));
#elif defined(ISA_AVX2)
    return (vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)bytes)));
#else
    int32_t four;
    memcpy(&four, bytes, 4);
    int16x8_t wide = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four)));
    return (vec)vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
#endif
}

/* The reverse, for the float formats; rounds to nearest even. */
INLINE void store_as(void *to, int64_t index, vec value, const int format) {
    if (format == FORMAT_FLOAT32) {
        store((float *)to + index, value);
        return;
    }
    uint16_t *halves = (uint16_t *)to + index;
    if (format == FORMAT_FLOAT16) {
#if defined(ISA_AVX512)
        _mm256_storeu_si256((__m256i *)halves, _mm512_cvtps_ph((__m512)value, 0));
#elif defined(ISA_AVX2)
        _mm_storeu_si128((__m128i *)halves, _mm256_cvtps_ph((__m256)value, 0));
#else
        vst1_u16(halves, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)value)));
#endif
        return;
    }
    ivec bits = (ivec)value;
    ivec rounded = bits + 0x7FFF + ((bits >> 16) & 1);
    for (int i = 0; i < LANES; i++) halves[i] = (uint16_t)((uint32_t)rounded[i] >> 16);
}

/* exp(x) of each lane to 2 units in the last place; below -87 it is 0, which softmax wants. x must not exceed 88. */
INLINE vec exponential(vec x) {
    const vec least = spread(-87.3f);
    ivec is_least = x < least;
    x = (vec)(((ivec)least & is_least) | ((ivec)x & ~is_least));
    vec scaled = x * 1.44269504088896341f + 12582912.0f; /* 1.5 x 2^23: adding it rounds to an integer */
    ivec power = (ivec)scaled - 0x4B400000;
    vec turns = scaled - 12582912.0f;
    vec r = x - turns * 0.693359375f + turns * 2.12194440e-4f;
    vec p = spread(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    vec result = p * (vec)((power + 127) << 23);
    return (vec)((ivec)result & ~is_least);
}
