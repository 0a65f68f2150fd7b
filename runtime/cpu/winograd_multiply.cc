#include "runtime/cpu/winograd_multiply.h"

#include <algorithm>
#include <cstring>

#include "runtime/cpu/avx512.h"

namespace fusor::cpu {
namespace {

constexpr int64_t kBlock = kWinogradBlock;

// The results of kRows rows stay in registers: 6 by 4 of the 32 vectors.
constexpr int kMaxRows = 6;

template <int kRows, int kVectors>
FUSOR_AVX512 void MultiplyRows(const WinogradProduct& product, int64_t row) {
  const uint16_t* a = product.a + row * product.row_stride;
  const uint16_t* b = product.b;
  float* c = product.c + row * kVectors * kBlock;
  __m512 sum[kRows][kVectors];
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      sum[i][j] = product.adds ? _mm512_load_ps(c + (i * kVectors + j) * kBlock)
                               : _mm512_setzero_ps();
    }
  }
  for (int64_t k = 0; k < product.steps; ++k) {
    __m512bh pairs[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      pairs[j] =
          reinterpret_cast<__m512bh>(_mm512_load_si512(b + j * 2 * kBlock));
    }
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
      int32_t bits;
      std::memcpy(&bits, a + i * product.row_stride, sizeof(bits));
      const auto pair = reinterpret_cast<__m512bh>(_mm512_set1_epi32(bits));
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) {
        sum[i][j] = _mm512_dpbf16_ps(sum[i][j], pair, pairs[j]);
      }
    }
    a += product.step_stride;
    b += kVectors * 2 * kBlock;
  }
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      _mm512_store_ps(c + (i * kVectors + j) * kBlock, sum[i][j]);
    }
  }
}

using RowsFunction = void (*)(const WinogradProduct&, int64_t row);

template <int kRows>
constexpr RowsFunction kMultiply[] = {
    MultiplyRows<kRows, 1>, MultiplyRows<kRows, 2>, MultiplyRows<kRows, 3>,
    MultiplyRows<kRows, 4>};

constexpr const RowsFunction* kMultiplyRows[] = {
    kMultiply<1>, kMultiply<2>, kMultiply<3>,
    kMultiply<4>, kMultiply<5>, kMultiply<kMaxRows>};

}  // namespace

bool HasWinogradKernels() {
  return __builtin_cpu_supports("avx512f") != 0 &&
         __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0 &&
         __builtin_cpu_supports("avx512bf16") != 0;
}

void Multiply(const WinogradProduct& product) {
  for (int64_t row = 0; row < product.rows; row += kMaxRows) {
    const int64_t rows = std::min<int64_t>(product.rows - row, kMaxRows);
    kMultiplyRows[rows - 1][product.vectors - 1](product, row);
  }
}

}  // namespace fusor::cpu
