/* The kernels for cores with AVX2. */
#if defined(__x86_64__)
#pragma GCC optimize("O2", "no-math-errno", "no-trapping-math")
#pragma GCC target("avx2,fma,f16c")
#define ISA_AVX2
#define ISA(name) avx2_##name
#include "kernels.h"
#endif
