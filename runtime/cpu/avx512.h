#pragma once

#include <immintrin.h>

// Compiles a function for CPUs with AVX-512, whatever the rest of the program
// is compiled for. Functions inlined into it must have the same attribute.
#define FUSOR_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))
#define FUSOR_AVX512_INLINE FUSOR_AVX512 __attribute__((always_inline)) inline

// GCC 12 warns about the undefined operands of its own intrinsics.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
