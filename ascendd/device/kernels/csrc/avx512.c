/* The kernels for cores with AVX-512. */
#if defined(__x86_64__)
#pragma GCC optimize("O2", "no-math-errno", "no-trapping-math")
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")
#define ISA_AVX512
#define ISA(name) avx512_##name
#include "kernels.h"
#endif
