/* The kernels for 64-bit Arm cores, which all have NEON. */
#if defined(__aarch64__)
#pragma GCC optimize("O2", "no-math-errno", "no-trapping-math")
#define ISA_NEON
#define ISA(name) neon_##name
#include "kernels.h"
#endif
