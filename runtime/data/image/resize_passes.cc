#include "runtime/data/image/resize_passes.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
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

}  // namespace

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

#if defined(__x86_64__)
namespace {

// The products are those of 16-bit numbers: two taps per instruction. A weight
// is high * 2^12 + low. Sums may wrap around, which the last sum undoes.
constexpr int kLowBits = 12;

constexpr int kColumns = 4;               // pixels per group of columns
constexpr int kGroup = 2 * kColumns * 8;  // weights of a group, two taps
constexpr int kValues = 32;               // values per block of rows
constexpr size_t kPadding = 2 * kValues;  // bytes after a buffer

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

// Orders the weights of columns as SumColumnsAvx2 reads them: by group, pair of
// taps, high and low part, then pixels 0, 2, 1, 3 with each pair four times.
void OrderColumns(const ResizeAxis& columns, ResizeScratch& scratch) {
  const size_t width = columns.first.size();
  const size_t groups = (width + kColumns - 1) / kColumns;
  scratch.offsets.resize(groups * kColumns);
  for (size_t x = 0; x < scratch.offsets.size(); ++x) {
    scratch.offsets[x] = 3 * columns.first[std::min(x, width - 1)];
  }
  const int pairs = (columns.taps + 1) / 2;
  scratch.weights.resize(groups * pairs * kGroup);
  int16_t* to = scratch.weights.data();
  for (size_t group = 0; group < groups; ++group) {
    for (int pair = 0; pair < pairs; ++pair) {
      for (const auto part : {High, Low}) {
        for (const size_t pixel : {0, 2, 1, 3}) {
          const size_t x = group * kColumns + pixel;
          const int16_t first = part(WeightAt(columns, x, 2 * pair));
          const int16_t second = part(WeightAt(columns, x, 2 * pair + 1));
          for (int copy = 0; copy < 4; ++copy) {
            *to++ = first;
            *to++ = second;
          }
        }
      }
    }
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

// Filters a row. Pixel x reads from byte offsets[x] on. Reads up to 8 bytes
// past the last tap, and writes up to 11 bytes past the result.
FUSOR_AVX2_INLINE void SumColumnsAvx2(const uint8_t* row, const int* offsets,
                                      int width, int pairs,
                                      const int16_t* weights, uint8_t* out) {
  // Bytes R0 G0 B0 R1 G1 B1 become words R0 R1 G0 G1 B0 B1.
  const __m256i taps = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1));
  // Two pixels of 4 bytes become two of 3.
  const __m256i bytes = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 1, 2, 4, 5, 6, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
  for (int x = 0; x < width; x += kColumns) {
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
      weights += kGroup;
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
    out += 3 * kColumns;
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

// Filters kValues values of `taps` rows, `stride` bytes apart.
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
  size_t i = 0;
  for (; i + kValues <= values; i += kValues) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i),
                        SumRowsAvx2(in + i, values, pairs, taps));
  }
  if (i == values) return;
  alignas(32) uint8_t rest[kValues];
  _mm256_store_si256(reinterpret_cast<__m256i*>(rest),
                     SumRowsAvx2(in + i, values, pairs, taps));
  std::memcpy(out + i, rest, values - i);
}

FUSOR_AVX2 void ResizeAvx2(const ResizePasses& p, ResizeScratch& scratch) {
  const int width = Width(p);
  const size_t values = size_t{3} * width;
  const int rows = p.source.height;
  OrderColumns(p.columns, scratch);
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
    uint8_t* out = &scratch.narrow[values * y];
    const int* offsets = scratch.offsets.data();
    const int16_t* weights = scratch.weights.data();
    // One pair, when an image grows, is compiled for itself.
    if (pairs == 1) {
      SumColumnsAvx2(row, offsets, width, 1, weights, out);
    } else {
      SumColumnsAvx2(row, offsets, width, pairs, weights, out);
    }
  }
  for (int y = 0; y < Height(p); ++y) {
    const int first = p.rows.first[y];
    const int taps = std::min(p.rows.taps, rows - first);
    OrderRows(&p.rows.weights[size_t{1} * y * p.rows.taps], taps,
              scratch.pairs);
    const uint8_t* in = &scratch.narrow[values * first];
    uint8_t* out = p.out + values * y;
    if (taps == 2) {
      SumRowAvx2(in, values, scratch.pairs.data(), 2, out);
    } else {
      SumRowAvx2(in, values, scratch.pairs.data(), taps, out);
    }
  }
}

#undef FUSOR_AVX2
#undef FUSOR_AVX2_INLINE

}  // namespace

void ResizeFast(const ResizePasses& passes, ResizeScratch& scratch) {
  static const bool avx2 = __builtin_cpu_supports("avx2");
  (avx2 ? ResizeAvx2 : ResizePortably)(passes, scratch);
}
#else
void ResizeFast(const ResizePasses& passes, ResizeScratch& scratch) {
  ResizePortably(passes, scratch);
}
#endif

}  // namespace fusor::runtime
