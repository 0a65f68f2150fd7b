#pragma once

#include <immintrin.h>

// Functions for CPUs that have it, compiled so whatever the rest of the program
// is compiled for. What is inlined into them must carry the same attribute.
#define FUSOR_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))
#define FUSOR_AVX512_INLINE FUSOR_AVX512 __attribute__((always_inline)) inline

// GCC 12 takes the undefined operands of its own intrinsics for a mistake.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
