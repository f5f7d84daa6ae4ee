/* Sums, products and extremes of every type that HCCL reduces. Halves are computed in fp32 and rounded after each step. */
#include "hccl.h"

#include <string.h>

size_t standin_type_size(uint32_t type)
{
    static const unsigned char sizes[] = {1, 2, 4, 2, 4, 8, 8, 1, 2, 4, 8, 2};
    return type < sizeof sizes ? sizes[type] : 0;
}

static float from_bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

static uint16_t to_bf16(float value)
{
    uint32_t wide;
    memcpy(&wide, &value, 4);
    if ((wide & 0x7fffffffu) > 0x7f800000u)
        return 0x7fc0; /* not a number */
    return (uint16_t)((wide + 0x7fffu + (wide >> 16 & 1)) >> 16); /* to nearest, ties to even */
}

#define COMBINE(a, b) \
    (reduction == HCCL_SUM ? (a) + (b) : reduction == HCCL_PROD ? (a) * (b) : reduction == HCCL_MAX ? ((a) > (b) ? (a) : (b)) : ((a) < (b) ? (a) : (b)))

#define EACH(ctype)                                                     \
    do {                                                                \
        ctype *to = target;                                             \
        const ctype *from = source;                                     \
        for (size_t i = 0; i < count; i++)                              \
            to[i] = (ctype)COMBINE(to[i], from[i]);                     \
    } while (0)

int standin_reduce(void *target, const void *source, size_t count, uint32_t type, uint32_t reduction)
{
    if (reduction > HCCL_MIN)
        return -1;
    switch (type) {
    case 0: EACH(int8_t); return 0;
    case 1: EACH(int16_t); return 0;
    case 2: EACH(int32_t); return 0;
    case 3:
        for (size_t i = 0; i < count; i++) {
            float a = ((_Float16 *)target)[i], b = ((const _Float16 *)source)[i];
            ((_Float16 *)target)[i] = (_Float16)COMBINE(a, b);
        }
        return 0;
    case 4: EACH(float); return 0;
    case 5: EACH(int64_t); return 0;
    case 11:
        for (size_t i = 0; i < count; i++) {
            float a = from_bf16(((uint16_t *)target)[i]), b = from_bf16(((const uint16_t *)source)[i]);
            ((uint16_t *)target)[i] = to_bf16(COMBINE(a, b));
        }
        return 0;
    default: return -1;
    }
}
