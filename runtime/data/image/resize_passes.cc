#include "runtime/data/image/resize_passes.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>

// GCC 12 warns about the undefined operands of its own intrinsics.
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#endif

namespace fusor::runtime {
namespace {

constexpr int32_t kHalf = 1 << (kResizeBits - 1);

int Width(const ResizePasses& p) {
  return static_cast<int>(p.columns.first.size());
}
int Height(const ResizePasses& p) {
  return static_cast<int>(p.rows.first.size());
}

// Weights sum to one, so that no result needs clamping.
void Narrow(const std::vector<int32_t>& sums, uint8_t* out) {
  for (size_t i = 0; i < sums.size(); ++i) {
    out[i] = static_cast<uint8_t>(sums[i] >> kResizeBits);
  }
}

// Filters a row. Each pixel has 3 values.
void SumColumns(const uint8_t* row, const ResizeAxis& columns,
                std::vector<int32_t>& sums) {
  for (size_t x = 0; x < columns.first.size(); ++x) {
    const uint8_t* from = row + size_t{3} * columns.first[x];
    const int32_t* weights = &columns.weights[x * columns.taps];
    for (int c = 0; c < 3; ++c) {
      int32_t sum = kHalf;
      for (int t = 0; t < columns.taps; ++t) {
        sum += weights[t] * from[3 * t + c];
      }
      sums[3 * x + c] = sum;
    }
  }
}

void ResizePortably(const ResizePasses& p, ResizeScratch& scratch) {
  const size_t values = size_t{3} * Width(p);
  const int rows = p.source.height;
  scratch.row.resize(size_t{3} * (p.source.width + p.columns.taps));
  scratch.sums.resize(values);
  scratch.narrow.resize(values * rows);
  for (int y = 0; y < rows; ++y) {
    std::copy_n(p.source.Row(y), size_t{3} * p.source.width,
                scratch.row.data());
    SumColumns(scratch.row.data(), p.columns, scratch.sums);
    Narrow(scratch.sums, &scratch.narrow[values * y]);
  }
  for (int y = 0; y < Height(p); ++y) {
    const int first = p.rows.first[y];
    std::fill(scratch.sums.begin(), scratch.sums.end(), kHalf);
    for (int t = 0; t < std::min(p.rows.taps, rows - first); ++t) {
      const int32_t weight = p.rows.weights[size_t{1} * y * p.rows.taps + t];
      const uint8_t* row = &scratch.narrow[values * (first + t)];
      for (size_t i = 0; i < values; ++i) scratch.sums[i] += weight * row[i];
    }
    Narrow(scratch.sums, p.out + values * y);
  }
}

}  // namespace

#if defined(__x86_64__)
namespace {

// The products are those of 16-bit numbers: two taps per instruction. A weight
// is high * 2^12 + low. Sums may wrap around, which the last sum undoes.
constexpr int kLowBits = 12;

constexpr size_t kPadding = 64;  // bytes after a buffer

int16_t High(int32_t weight) {
  return static_cast<int16_t>(weight >> kLowBits);
}
int16_t Low(int32_t weight) {
  return static_cast<int16_t>(weight & ((1 << kLowBits) - 1));
}

// Returns weight `tap` of an axis at a position; zero past the last of both.
int32_t WeightAt(const ResizeAxis& axis, size_t position, int tap) {
  if (position >= axis.first.size() || tap >= axis.taps) return 0;
  return axis.weights[position * axis.taps + tap];
}

// Weights of two taps for a group of that many pixels: high parts, low parts.
constexpr int GroupWeights(int columns) { return 2 * columns * 8; }

// Orders the weights of columns by group, pair of taps, high and low part, then
// the group's even pixels and its odd ones, with each pair four times.
void OrderColumns(const ResizeAxis& axis, size_t columns,
                  ResizeScratch& scratch) {
  const size_t width = axis.first.size();
  const size_t groups = (width + columns - 1) / columns;
  scratch.offsets.resize(groups * columns);
  for (size_t x = 0; x < scratch.offsets.size(); ++x) {
    scratch.offsets[x] = 3 * axis.first[std::min(x, width - 1)];
  }
  const int pairs = (axis.taps + 1) / 2;
  scratch.weights.resize(groups * pairs *
                         GroupWeights(static_cast<int>(columns)));
  int16_t* to = scratch.weights.data();
  for (size_t group = 0; group < groups; ++group) {
    for (int pair = 0; pair < pairs; ++pair) {
      for (const auto part : {High, Low}) {
        for (size_t i = 0; i < columns; ++i) {
          const size_t pixel = i < columns / 2 ? 2 * i : 2 * i + 1 - columns;
          const size_t x = group * columns + pixel;
          const int16_t first = part(WeightAt(axis, x, 2 * pair));
          const int16_t second = part(WeightAt(axis, x, 2 * pair + 1));
          for (int copy = 0; copy < 4; ++copy) {
            *to++ = first;
            *to++ = second;
          }
        }
      }
    }
  }
}

// Packs the weights of two taps each into 32 bits: high parts, low parts.
void OrderRows(const int32_t* weights, int taps, std::vector<int32_t>& pairs) {
  pairs.clear();
  for (int t = 0; t < taps; t += 2) {
    const int32_t second = t + 1 < taps ? weights[t + 1] : 0;
    pairs.push_back(High(weights[t]) | High(second) << 16);
    pairs.push_back(Low(weights[t]) | Low(second) << 16);
  }
}

// The passes by the functions of an instruction set.
struct VectorPasses {
  int columns;  // pixels per group
  // Filters a row. Pixel x reads from byte offsets[x] on. Reads up to 8 bytes
  // past the last tap, and writes up to 23 bytes past the result.
  void (*sum_columns)(const uint8_t* row, const int* offsets, int width,
                      int pairs, const int16_t* weights, uint8_t* out);
  // Filters `taps` rows of `values`.
  void (*sum_rows)(const uint8_t* in, size_t values, const int32_t* pairs,
                   int taps, uint8_t* out);
};

void Resize(const ResizePasses& p, const VectorPasses& passes,
            ResizeScratch& scratch) {
  const int width = Width(p);
  const size_t values = size_t{3} * width;
  const int rows = p.source.height;
  OrderColumns(p.columns, passes.columns, scratch);
  const size_t row_bytes = size_t{3} * p.source.width;
  const size_t read = row_bytes + size_t{3} * p.columns.taps + kPadding;
  scratch.row.resize(read);
  scratch.narrow.resize(values * rows + kPadding);
  const int pairs = (p.columns.taps + 1) / 2;
  for (int y = 0; y < rows; ++y) {
    const uint8_t* row = p.source.Row(y);
    if (row_bytes * (rows - y) < read) {  // near the end of the image
      std::copy_n(row, row_bytes, scratch.row.data());
      row = scratch.row.data();
    }
    passes.sum_columns(row, scratch.offsets.data(), width, pairs,
                       scratch.weights.data(), &scratch.narrow[values * y]);
  }
  for (int y = 0; y < Height(p); ++y) {
    const int first = p.rows.first[y];
    const int taps = std::min(p.rows.taps, rows - first);
    OrderRows(&p.rows.weights[size_t{1} * y * p.rows.taps], taps,
              scratch.pairs);
    passes.sum_rows(&scratch.narrow[values * first], values,
                    scratch.pairs.data(), taps, p.out + values * y);
  }
}

#define FUSOR_AVX2 __attribute__((target("avx2")))
#define FUSOR_AVX2_INLINE inline __attribute__((target("avx2"), always_inline))

FUSOR_AVX2_INLINE __m256i Load(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

// Loads two pixels from each of two places: 6 bytes each, of 8.
FUSOR_AVX2_INLINE __m256i LoadPixels(const uint8_t* a, const uint8_t* b) {
  const __m128i low = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(a));
  const __m128i high = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(b));
  return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

FUSOR_AVX2_INLINE __m256i AddProducts(__m256i sum, __m256i pixels,
                                      const int16_t* weights) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pixels, Load(weights)));
}

FUSOR_AVX2_INLINE __m256i Result(__m256i high, __m256i low) {
  return _mm256_srli_epi32(
      _mm256_add_epi32(_mm256_slli_epi32(high, kLowBits), low), kResizeBits);
}

constexpr int kAvx2Columns = 4;

FUSOR_AVX2_INLINE void SumColumnsAvx2(const uint8_t* row, const int* offsets,
                                      int width, int pairs,
                                      const int16_t* weights, uint8_t* out) {
  // Bytes R0 G0 B0 R1 G1 B1 become words R0 R1 G0 G1 B0 B1.
  const __m256i taps = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1));
  // Two pixels of 4 bytes become two of 3.
  const __m256i bytes = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 1, 2, 4, 5, 6, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
  for (int x = 0; x < width; x += kAvx2Columns) {
    __m256i high02 = _mm256_setzero_si256();
    __m256i high13 = high02;
    __m256i low02 = _mm256_set1_epi32(kHalf);
    __m256i low13 = low02;
    const uint8_t* from = row;
    for (int pair = 0; pair < pairs; ++pair) {
      const __m256i p02 = _mm256_shuffle_epi8(
          LoadPixels(from + offsets[x], from + offsets[x + 2]), taps);
      const __m256i p13 = _mm256_shuffle_epi8(
          LoadPixels(from + offsets[x + 1], from + offsets[x + 3]), taps);
      high02 = AddProducts(high02, p02, weights);
      high13 = AddProducts(high13, p13, weights + 16);
      low02 = AddProducts(low02, p02, weights + 32);
      low13 = AddProducts(low13, p13, weights + 48);
      weights += GroupWeights(kAvx2Columns);
      from += 6;
    }
    const __m256i words =
        _mm256_packus_epi32(Result(high02, low02), Result(high13, low13));
    const __m256i pixels =
        _mm256_shuffle_epi8(_mm256_packus_epi16(words, words), bytes);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out),
                     _mm256_castsi256_si128(pixels));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out + 6),
                     _mm256_extracti128_si256(pixels, 1));
    out += 3 * kAvx2Columns;
  }
}

// Filters 32 values of `taps` rows, `stride` bytes apart.
FUSOR_AVX2_INLINE __m256i SumRowsAvx2(const uint8_t* in, size_t stride,
                                      const int32_t* pairs, int taps) {
  const __m256i zero = _mm256_setzero_si256();
  const __m256i half = _mm256_set1_epi32(kHalf);
  __m256i high[4] = {zero, zero, zero, zero};
  __m256i low[4] = {half, half, half, half};
  for (int t = 0; t < taps; t += 2, pairs += 2) {
    const __m256i high_pair = _mm256_set1_epi32(pairs[0]);
    const __m256i low_pair = _mm256_set1_epi32(pairs[1]);
    // The weight of a row past the last one is zero.
    const __m256i a = Load(in + stride * t);
    const __m256i b = Load(in + stride * std::min(t + 1, taps - 1));
    const __m256i ab[2] = {_mm256_unpacklo_epi8(a, b),
                           _mm256_unpackhi_epi8(a, b)};
    const __m256i words[4] = {
        _mm256_unpacklo_epi8(ab[0], zero), _mm256_unpackhi_epi8(ab[0], zero),
        _mm256_unpacklo_epi8(ab[1], zero), _mm256_unpackhi_epi8(ab[1], zero)};
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      high[i] =
          _mm256_add_epi32(high[i], _mm256_madd_epi16(words[i], high_pair));
      low[i] = _mm256_add_epi32(low[i], _mm256_madd_epi16(words[i], low_pair));
    }
  }
  return _mm256_packus_epi16(
      _mm256_packus_epi32(Result(high[0], low[0]), Result(high[1], low[1])),
      _mm256_packus_epi32(Result(high[2], low[2]), Result(high[3], low[3])));
}

FUSOR_AVX2_INLINE void SumRowAvx2(const uint8_t* in, size_t values,
                                  const int32_t* pairs, int taps,
                                  uint8_t* out) {
  constexpr size_t kBlock = sizeof(__m256i);
  size_t i = 0;
  for (; i + kBlock <= values; i += kBlock) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i),
                        SumRowsAvx2(in + i, values, pairs, taps));
  }
  if (i == values) return;
  alignas(kBlock) uint8_t rest[kBlock];
  _mm256_store_si256(reinterpret_cast<__m256i*>(rest),
                     SumRowsAvx2(in + i, values, pairs, taps));
  std::memcpy(out + i, rest, values - i);
}

// One pair of taps, when an image grows, is compiled for itself.
FUSOR_AVX2 void ColumnsAvx2(const uint8_t* row, const int* offsets, int width,
                            int pairs, const int16_t* weights, uint8_t* out) {
  if (pairs == 1) {
    SumColumnsAvx2(row, offsets, width, 1, weights, out);
  } else {
    SumColumnsAvx2(row, offsets, width, pairs, weights, out);
  }
}
FUSOR_AVX2 void RowsAvx2(const uint8_t* in, size_t values, const int32_t* pairs,
                         int taps, uint8_t* out) {
  if (taps == 2) {
    SumRowAvx2(in, values, pairs, 2, out);
  } else {
    SumRowAvx2(in, values, pairs, taps, out);
  }
}

void ResizeAvx2(const ResizePasses& passes, ResizeScratch& scratch) {
  Resize(passes, {kAvx2Columns, ColumnsAvx2, RowsAvx2}, scratch);
}

#undef FUSOR_AVX2
#undef FUSOR_AVX2_INLINE

// The same with AVX-512 and VNNI, whose products are added at once. GCC inlines
// functions of an instruction set only into functions for it, which a template
// for both could not be.
#define FUSOR_AVX512 __attribute__((target("avx512f,avx512bw,avx512vnni")))
#define FUSOR_AVX512_INLINE inline FUSOR_AVX512 __attribute__((always_inline))

constexpr int kAvx512Columns = 8;

// Loads two pixels from the places of every second column.
FUSOR_AVX512_INLINE __m512i LoadPixels512(const uint8_t* from,
                                          const int* offsets) {
  const auto load = [&](int i) FUSOR_AVX512 {
    return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + offsets[i]));
  };
  return _mm512_inserti64x4(
      _mm512_castsi256_si512(_mm256_set_m128i(load(2), load(0))),
      _mm256_set_m128i(load(6), load(4)), 1);
}

FUSOR_AVX512_INLINE __m512i Result512(__m512i high, __m512i low) {
  return _mm512_srli_epi32(
      _mm512_add_epi32(_mm512_slli_epi32(high, kLowBits), low), kResizeBits);
}

FUSOR_AVX512_INLINE void SumColumnsAvx512(const uint8_t* row,
                                          const int* offsets, int width,
                                          int pairs, const int16_t* weights,
                                          uint8_t* out) {
  const __m512i taps = _mm512_broadcast_i32x4(
      _mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1));
  const __m512i bytes = _mm512_broadcast_i32x4(
      _mm_setr_epi8(0, 1, 2, 4, 5, 6, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
  for (int x = 0; x < width; x += kAvx512Columns) {
    __m512i high_even = _mm512_setzero_si512();
    __m512i high_odd = high_even;
    __m512i low_even = _mm512_set1_epi32(kHalf);
    __m512i low_odd = low_even;
    const uint8_t* from = row;
    for (int pair = 0; pair < pairs; ++pair) {
      const __m512i even =
          _mm512_shuffle_epi8(LoadPixels512(from, offsets + x), taps);
      const __m512i odd =
          _mm512_shuffle_epi8(LoadPixels512(from, offsets + x + 1), taps);
      high_even =
          _mm512_dpwssd_epi32(high_even, even, _mm512_loadu_si512(weights));
      high_odd =
          _mm512_dpwssd_epi32(high_odd, odd, _mm512_loadu_si512(weights + 32));
      low_even =
          _mm512_dpwssd_epi32(low_even, even, _mm512_loadu_si512(weights + 64));
      low_odd =
          _mm512_dpwssd_epi32(low_odd, odd, _mm512_loadu_si512(weights + 96));
      weights += GroupWeights(kAvx512Columns);
      from += 6;
    }
    const __m512i words = _mm512_packus_epi32(Result512(high_even, low_even),
                                              Result512(high_odd, low_odd));
    const __m512i pixels =
        _mm512_shuffle_epi8(_mm512_packus_epi16(words, words), bytes);
    const auto store = [&](int pair, __m128i two) FUSOR_AVX512 {
      _mm_storel_epi64(reinterpret_cast<__m128i*>(out + 6 * pair), two);
    };
    store(0, _mm512_castsi512_si128(pixels));
    store(1, _mm512_extracti32x4_epi32(pixels, 1));
    store(2, _mm512_extracti32x4_epi32(pixels, 2));
    store(3, _mm512_extracti32x4_epi32(pixels, 3));
    out += 3 * kAvx512Columns;
  }
}

// Filters 64 values.
FUSOR_AVX512_INLINE __m512i SumRowsAvx512(const uint8_t* in, size_t stride,
                                          const int32_t* pairs, int taps) {
  const __m512i zero = _mm512_setzero_si512();
  const __m512i half = _mm512_set1_epi32(kHalf);
  __m512i high[4] = {zero, zero, zero, zero};
  __m512i low[4] = {half, half, half, half};
  for (int t = 0; t < taps; t += 2, pairs += 2) {
    const __m512i high_pair = _mm512_set1_epi32(pairs[0]);
    const __m512i low_pair = _mm512_set1_epi32(pairs[1]);
    const __m512i a = _mm512_loadu_si512(in + stride * t);
    const __m512i b =
        _mm512_loadu_si512(in + stride * std::min(t + 1, taps - 1));
    const __m512i ab[2] = {_mm512_unpacklo_epi8(a, b),
                           _mm512_unpackhi_epi8(a, b)};
    const __m512i words[4] = {
        _mm512_unpacklo_epi8(ab[0], zero), _mm512_unpackhi_epi8(ab[0], zero),
        _mm512_unpacklo_epi8(ab[1], zero), _mm512_unpackhi_epi8(ab[1], zero)};
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      high[i] = _mm512_dpwssd_epi32(high[i], words[i], high_pair);
      low[i] = _mm512_dpwssd_epi32(low[i], words[i], low_pair);
    }
  }
  return _mm512_packus_epi16(_mm512_packus_epi32(Result512(high[0], low[0]),
                                                 Result512(high[1], low[1])),
                             _mm512_packus_epi32(Result512(high[2], low[2]),
                                                 Result512(high[3], low[3])));
}

FUSOR_AVX512_INLINE void SumRowAvx512(const uint8_t* in, size_t values,
                                      const int32_t* pairs, int taps,
                                      uint8_t* out) {
  constexpr size_t kBlock = sizeof(__m512i);
  size_t i = 0;
  for (; i + kBlock <= values; i += kBlock) {
    _mm512_storeu_si512(out + i, SumRowsAvx512(in + i, values, pairs, taps));
  }
  if (i == values) return;
  alignas(kBlock) uint8_t rest[kBlock];
  _mm512_store_si512(rest, SumRowsAvx512(in + i, values, pairs, taps));
  std::memcpy(out + i, rest, values - i);
}

FUSOR_AVX512 void ColumnsAvx512(const uint8_t* row, const int* offsets,
                                int width, int pairs, const int16_t* weights,
                                uint8_t* out) {
  if (pairs == 1) {
    SumColumnsAvx512(row, offsets, width, 1, weights, out);
  } else {
    SumColumnsAvx512(row, offsets, width, pairs, weights, out);
  }
}
FUSOR_AVX512 void RowsAvx512(const uint8_t* in, size_t values,
                             const int32_t* pairs, int taps, uint8_t* out) {
  if (taps == 2) {
    SumRowAvx512(in, values, pairs, 2, out);
  } else {
    SumRowAvx512(in, values, pairs, taps, out);
  }
}

void ResizeAvx512(const ResizePasses& passes, ResizeScratch& scratch) {
  Resize(passes, {kAvx512Columns, ColumnsAvx512, RowsAvx512}, scratch);
}

#undef FUSOR_AVX512
#undef FUSOR_AVX512_INLINE

}  // namespace

std::vector<ResizeFunction> ResizeFunctions() {
  std::vector<ResizeFunction> functions;
  if (__builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vnni")) {
    functions.push_back(ResizeAvx512);
  }
  if (__builtin_cpu_supports("avx2")) functions.push_back(ResizeAvx2);
  functions.push_back(ResizePortably);
  return functions;
}
#else
std::vector<ResizeFunction> ResizeFunctions() { return {ResizePortably}; }
#endif

}  // namespace fusor::runtime
