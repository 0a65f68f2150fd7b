#include "runtime/cpu/gloo/reduce_kernels.h"

#include <immintrin.h>

#include <algorithm>
#include <array>

#include "ir/support/error.h"

#define FUSOR_AVX2 __attribute__((target("avx2,f16c")))

namespace fusor::cpu {
namespace {

using ir::DType;

constexpr size_t kLanes = 8;

// Loads eight 16-bit elements as floats, and stores them rounded to nearest
// even.
struct F16 {
  FUSOR_AVX2 static __m256 Load(const uint16_t* from) {
    return _mm256_cvtph_ps(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  FUSOR_AVX2 static void Store(uint16_t* to, __m256 x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
  static float One(uint16_t bits) { return ir::HalfToFloat(bits); }
  static uint16_t Bits(float x) { return ir::FloatToHalf(x); }
};

struct BF16 {
  FUSOR_AVX2 static __m256 Load(const uint16_t* from) {
    const __m256i wide = _mm256_cvtepu16_epi32(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  FUSOR_AVX2 static void Store(uint16_t* to, __m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd =
        _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(
        bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    // Rounding could turn a NaN into an infinity, so NaNs get the quiet bit.
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i high =
        _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    const __m256i packed =
        _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0b11011000);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm256_castsi256_si128(packed));
  }
  static float One(uint16_t bits) { return ir::BFloat16ToFloat(bits); }
  static uint16_t Bits(float x) { return ir::FloatToBFloat16(x); }
};

template <typename Half>
FUSOR_AVX2 void SumHalves(void* out, const void* a, const void* b, size_t n) {
  auto* to = static_cast<uint16_t*>(out);
  const auto* x = static_cast<const uint16_t*>(a);
  const auto* y = static_cast<const uint16_t*>(b);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Half::Store(to + i, _mm256_add_ps(Half::Load(x + i), Half::Load(y + i)));
  }
  for (; i < n; ++i) to[i] = Half::Bits(Half::One(x[i]) + Half::One(y[i]));
}

template <typename T>
FUSOR_AVX2 void SumFloats(void* out, const void* a, const void* b, size_t n) {
  auto* to = static_cast<T*>(out);
  const auto* x = static_cast<const T*>(a);
  const auto* y = static_cast<const T*>(b);
  for (size_t i = 0; i < n; ++i) to[i] = x[i] + y[i];
}

template <typename Half>
FUSOR_AVX2 void HalvesInOrder(void* out, std::span<const void* const> parts,
                              int64_t n) {
  auto* to = static_cast<uint16_t*>(out);
  int64_t i = 0;
  for (; i + static_cast<int64_t>(kLanes) <= n; i += kLanes) {
    __m256 sum = _mm256_setzero_ps();
    for (const void* part : parts) {
      const auto* from = static_cast<const uint16_t*>(part);
      sum = _mm256_add_ps(sum, Half::Load(from + i));
    }
    Half::Store(to + i, sum);
  }
  for (; i < n; ++i) {
    float sum = 0;
    for (const void* part : parts) {
      sum += Half::One(static_cast<const uint16_t*>(part)[i]);
    }
    to[i] = Half::Bits(sum);
  }
}

template <typename T>
FUSOR_AVX2 void FloatsInOrder(void* out, std::span<const void* const> parts,
                              int64_t n) {
  auto* to = static_cast<T*>(out);
  constexpr int64_t kBlock = 1024;  // fits the L1 cache
  for (int64_t start = 0; start < n; start += kBlock) {
    const int64_t size = std::min(kBlock, n - start);
    std::array<T, kBlock> sum{};
    for (const void* part : parts) {
      const T* from = static_cast<const T*>(part) + start;
      for (int64_t i = 0; i < size; ++i) sum[i] += from[i];
    }
    std::copy_n(sum.begin(), size, to + start);
  }
}

}  // namespace

WireSum WireSumOf(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return SumFloats<double>;
    case DType::kF32:
      return SumFloats<float>;
    case DType::kF16:
      return SumHalves<F16>;
    case DType::kBF16:
      return SumHalves<BF16>;
    default:
      return nullptr;
  }
}

void SumInOrder(DType dtype, void* out, std::span<const void* const> parts,
                int64_t n) {
  switch (dtype) {
    case DType::kF64:
      return FloatsInOrder<double>(out, parts, n);
    case DType::kF32:
      return FloatsInOrder<float>(out, parts, n);
    case DType::kF16:
      return HalvesInOrder<F16>(out, parts, n);
    case DType::kBF16:
      return HalvesInOrder<BF16>(out, parts, n);
    default:
      FUSOR_ASSERT(false, "sums of {}", DTypeName(dtype));
  }
}

}  // namespace fusor::cpu
