#pragma once

// Tiles of AMX, for the translation units whose functions inline them.

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "codegen/cpu/amx_plan.h"
#include "codegen/cpu/host.h"
#include "runtime/cpu/lanes.h"
#include "runtime/cpu/thread_team.h"

// GCC 12 warns about the undefined operands of its own intrinsics.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace fusor::cpu {

// Two rows and two columns of tiles of sums: sums[i][j] += sum over steps of
// a[i] * b[j]. A tile of a is [16, 32], one of b [16, 16, 2], contiguous. If a
// product is split, a and b are the first of three packed parts each.
struct TileProduct {
  const uint16_t* a = nullptr;
  int64_t a_row = 0, a_next = 0, a_step = 0;  // elements
  const uint16_t* b = nullptr;
  int64_t b_next = 0, b_step = 0;
  int64_t steps = 0;
};

// The rows and columns of tiles that are used.
struct TileGrid {
  bool two_rows = true, two_columns = true;
};

// Elements of a panel's two tiles, of one part of split elements.
inline constexpr int64_t kPanelTile = 2 * kAmxTile;

// Sums of all tiles, [2, 2, 16, 16].
using TileSums = float[2][2][kAmxSums];

// The corner of a matrix that a tile holds. `outer` counts rows of the first
// operand or columns of the second. Either it or the depth is contiguous.
template <typename Element>
struct Corner {
  const Element* first = nullptr;
  int64_t outer_step = 0, depth_step = 0;
  int64_t outer = 0, depth = 0;  // elements from here to the matrix's end
  // Only for activations in f32, whose next image is `jump` elements further
  // away. In blocks of 16 channels, line number `lines` is the first of the
  // next image, and where the depth is contiguous, element 16 is `second`
  // elements after element 0. If they are row-major, element `run` of each line
  // is the first of the next image; JoinLines copies them.
  int64_t second = kAmxRows;
  int64_t lines = kAmxDepth, run = kAmxDepth, jump = 0;

  // Returns where contiguous elements begin: those of an outer element, or
  // of a depth.
  FUSOR_INLINE const Element* Line(int64_t i) const {
    return first + i * (depth_step == 1 ? outer_step : depth_step) +
           (i >= lines ? jump : 0);
  }
  FUSOR_INLINE Element At(int64_t i, int64_t k) const {
    if (depth_step != 1) return Line(k)[i];
    return Line(i)[k < kAmxRows ? k : k - kAmxRows + second];
  }
};

// Returns the same matrix with the lines of its tile copied to `to`, where they
// are contiguous. REQUIRES: row-major activations.
FUSOR_INLINE Corner<float> JoinLines(const Corner<float>& from,
                                     float (&to)[kAmxRows * kAmxDepth]) {
  const bool deep = from.depth_step == 1;
  const int64_t length = deep ? kAmxDepth : kAmxRows;
  const int64_t lines =
      std::min(deep ? from.outer : from.depth, kAmxRows * kAmxDepth / length);
  const int64_t used = std::min(deep ? from.depth : from.outer, length);
  for (int64_t i = 0; i < lines; ++i) {
    const float* const line = from.Line(i);
    for (int64_t k = 0; k < used; ++k) {
      to[i * length + k] = line[k < from.run ? k : k + from.jump];
    }
  }
  return {.first = to,
          .outer_step = deep ? length : 1,
          .depth_step = deep ? 1 : length,
          .outer = from.outer,
          .depth = from.depth};
}

// Returns the mask of the first `count` elements, which may be more than all
// or less than none.
template <typename Mask>
FUSOR_INLINE Mask First(int64_t count) {
  constexpr int64_t kBits = 8 * sizeof(Mask);
  if (count >= kBits) return static_cast<Mask>(~Mask{0});
  return count <= 0 ? Mask{0} : static_cast<Mask>((Mask{1} << count) - 1);
}

// Transposes [16, 16] words.
FUSOR_AVX512_BF16_INLINE void TransposeWords(__m512i (&x)[16]) {
  __m512i y[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
    x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
    x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
    x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
  }
  // x[4 * i + j] has column 4 * k + j of rows 4 * i to 4 * i + 3 in quarter k.
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    y[j] = _mm512_shuffle_i32x4(x[j], x[j + 4], 0x88);
    y[j + 4] = _mm512_shuffle_i32x4(x[j], x[j + 4], 0xdd);
    y[j + 8] = _mm512_shuffle_i32x4(x[j + 8], x[j + 12], 0x88);
    y[j + 12] = _mm512_shuffle_i32x4(x[j + 8], x[j + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    x[j] = _mm512_shuffle_i32x4(y[j], y[j + 8], 0x88);
    x[j + 8] = _mm512_shuffle_i32x4(y[j], y[j + 8], 0xdd);
    x[j + 4] = _mm512_shuffle_i32x4(y[j + 4], y[j + 12], 0x88);
    x[j + 12] = _mm512_shuffle_i32x4(y[j + 4], y[j + 12], 0xdd);
  }
}

// Tiles of AMX. Numbers 0 to 3 hold sums, 4 and 5 a, 6 and 7 b.
class AmxTiles {
 public:
  AmxTiles() {
    // The configuration of 64 bytes: palette 1, and the tiles' bytes per row
    // and rows.
    alignas(64) uint8_t config[64] = {1};
    for (int tile = 0; tile < 8; ++tile) {
      config[16 + 2 * tile] = 64;
      config[48 + tile] = kAmxRows;
    }
    asm volatile("ldtilecfg %0" ::"m"(config));
  }
  ~AmxTiles() { asm volatile("tilerelease"); }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;

  FUSOR_INLINE void Clear() {
    asm volatile(
        "tilezero %%tmm0\n\ttilezero %%tmm1\n\t"
        "tilezero %%tmm2\n\ttilezero %%tmm3" ::);
  }
  FUSOR_INLINE void LoadSums(const TileSums& sums) {
    Load<0>(sums[0][0], 64);
    Load<1>(sums[0][1], 64);
    Load<2>(sums[1][0], 64);
    Load<3>(sums[1][1], 64);
  }
  FUSOR_INLINE void StoreSums(TileSums& sums) {
    Store<0>(sums[0][0]);
    Store<1>(sums[0][1]);
    Store<2>(sums[1][0]);
    Store<3>(sums[1][1]);
  }

  template <bool kSplit, bool kTwoRows, bool kTwoColumns, typename Between>
  FUSOR_INLINE void Add(const TileProduct& p, const Between& between) {
    const uint16_t* a = p.a;
    const uint16_t* b = p.b;
    const int64_t row = p.a_row * static_cast<int64_t>(sizeof(uint16_t));
    for (int64_t step = 0; step < p.steps; ++step) {
      if constexpr (kSplit) {
        // The order loads one operand per product.
        LoadColumns<kTwoColumns>(b);
        AddRows<kTwoRows, kTwoColumns>(a + 2 * kPanelTile);
        AddRows<kTwoRows, kTwoColumns>(a + kPanelTile);
        AddColumns<kTwoRows, kTwoColumns>(b + kPanelTile);
        AddRows<kTwoRows, kTwoColumns>(a);
        AddColumns<kTwoRows, kTwoColumns>(b + 2 * kPanelTile);
        AddColumns<kTwoRows, kTwoColumns>(b);
        a += p.a_step;
        b += p.b_step;
        between();
        continue;
      }
      Load<4>(a, row);
      Load<6>(b, 64);
      asm volatile("tdpbf16ps %%tmm6, %%tmm4, %%tmm0" ::);
      if constexpr (kTwoColumns) {
        Load<7>(b + p.b_next, 64);
        asm volatile("tdpbf16ps %%tmm7, %%tmm4, %%tmm1" ::);
      }
      if constexpr (kTwoRows) {
        Load<5>(a + p.a_next, row);
        asm volatile("tdpbf16ps %%tmm6, %%tmm5, %%tmm2" ::);
        if constexpr (kTwoColumns) {
          asm volatile("tdpbf16ps %%tmm7, %%tmm5, %%tmm3" ::);
        }
      }
      a += p.a_step;
      b += p.b_step;
      between();
    }
  }

  // Writes a tile [16, 32] of `outer` and depth, or, if `kPairs`, [16, 16, 2]
  // of pairs along the depth, `outer`, and the pair. Pads with zeros.
  template <bool kPairs>
  FUSOR_AVX512_BF16 static void PackTile(const Corner<uint16_t>& from,
                                         uint16_t* to) {
    const bool deep = from.depth_step == 1;
    __m512i lines[16];  // words are pairs along the depth
    if (deep) {
      const auto mask = First<__mmask32>(from.depth);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        lines[i] = _mm512_maskz_loadu_epi16(i < from.outer ? mask : 0,
                                            from.first + i * from.outer_step);
      }
    } else {
      const auto mask = First<__mmask16>(from.outer);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        const uint16_t* even = from.first + 2 * i * from.depth_step;
        const __m256i a =
            _mm256_maskz_loadu_epi16(2 * i < from.depth ? mask : 0, even);
        const __m256i b = _mm256_maskz_loadu_epi16(
            2 * i + 1 < from.depth ? mask : 0, even + from.depth_step);
        lines[i] =
            _mm512_or_si512(_mm512_cvtepu16_epi32(a),
                            _mm512_slli_epi32(_mm512_cvtepu16_epi32(b), 16));
      }
    }
    StoreLines<kPairs>(deep, lines, to);
  }

  // Writes a line of two tiles of pairs, which are kAmxTile elements apart: of
  // two rows of 32 elements, `even` and `odd`, of which the matrix has the
  // first `rows` and the first `columns`. Pads with zeros.
  FUSOR_AVX512_BF16 static void PackPairs(const uint16_t* even,
                                          const uint16_t* odd, int64_t rows,
                                          int64_t columns, uint16_t* to) {
    const auto mask = First<__mmask32>(columns);
    const __m512i a = _mm512_maskz_loadu_epi16(rows > 0 ? mask : 0, even);
    const __m512i b = _mm512_maskz_loadu_epi16(rows > 1 ? mask : 0, odd);
    // A lane of 128 bits has pairs of eight columns: `low` of the first four,
    // `high` of the last four.
    const __m512i low = _mm512_unpacklo_epi16(a, b);
    const __m512i high = _mm512_unpackhi_epi16(a, b);
    const __m512i first = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0);
    const __m512i second = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
    _mm512_store_si512(to, _mm512_permutex2var_epi64(low, first, high));
    _mm512_store_si512(to + kAmxTile,
                       _mm512_permutex2var_epi64(low, second, high));
  }

  // Packs f32 as three such tiles, which are kPanelTile elements apart. Returns
  // whether all elements are finite, also when rounded to bf16.
  template <bool kPairs>
  FUSOR_AVX512_BF16 static bool PackTile(const Corner<float>& from,
                                         uint16_t* to) {
    return from.depth_step == 1 ? SplitTile<kPairs, true>(from, to)
                                : SplitTile<kPairs, false>(from, to);
  }

  // Rounds and stores rows of sums, of which the first columns are elements of
  // the result. Its rows are `step` elements apart. Those of f32 may have the
  // second 16 columns elsewhere, `second` elements after the first.
  template <typename To>
  FUSOR_AVX512_BF16 static void StoreRows(const TileSums& sums, IndexRange rows,
                                          int64_t columns, int64_t step, To* to,
                                          int64_t second = kAmxRows) {
    const auto mask = First<__mmask32>(columns);
    for (int64_t i = rows.begin; i < rows.end; ++i, to += step) {
      const int64_t tile = i / kAmxRows, row = i % kAmxRows * kAmxRows;
      const __m512 a = _mm512_load_ps(sums[tile][0] + row);
      const __m512 b = _mm512_load_ps(sums[tile][1] + row);
      if constexpr (sizeof(To) == sizeof(float)) {
        _mm512_mask_storeu_ps(to, static_cast<__mmask16>(mask), a);
        _mm512_mask_storeu_ps(to + second,
                              static_cast<__mmask16>(mask >> kAmxRows), b);
      } else {
        _mm512_mask_storeu_epi16(
            to, mask, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a)));
      }
    }
  }

  // Rounds and stores the first rows and columns of a tile of sums. The
  // result's rows are contiguous, its columns `step` elements apart. Row number
  // `run` is the first of the next image: from there on, rows are `jump`
  // elements further away.
  template <typename To>
  FUSOR_AVX512_BF16 static void StoreColumns(const float (&sums)[kAmxSums],
                                             int64_t rows, int64_t columns,
                                             int64_t step, int64_t run,
                                             int64_t jump, To* to) {
    __m512i lines[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      lines[i] = _mm512_load_si512(sums + i * kAmxRows);
    }
    TransposeWords(lines);
    const auto all = First<__mmask16>(rows);
    const auto here = First<__mmask16>(std::min(rows, run));
    const auto next = static_cast<__mmask16>(all & ~here);
    for (int64_t i = 0; i < std::min(columns, kAmxRows); ++i, to += step) {
      StoreLine(lines[i], here, to);
      if (next != 0) StoreLine(lines[i], next, to + jump);
    }
  }

 private:
  FUSOR_AVX512_BF16_INLINE static void StoreLine(__m512i line, __mmask16 mask,
                                                 float* to) {
    _mm512_mask_storeu_epi32(to, mask, line);
  }
  FUSOR_AVX512_BF16_INLINE static void StoreLine(__m512i line, __mmask16 mask,
                                                 uint16_t* to) {
    const __m256bh rounded = _mm512_cvtneps_pbh(reinterpret_cast<__m512>(line));
    _mm256_mask_storeu_epi16(to, mask, reinterpret_cast<__m256i>(rounded));
  }

  // `kDeep`: the depth is contiguous.
  template <bool kPairs, bool kDeep>
  FUSOR_AVX512_BF16_INLINE static bool SplitTile(const Corner<float>& from,
                                                 uint16_t* to) {
    const auto mask = First<__mmask32>(kDeep ? from.depth : from.outer);
    __mmask16 special = 0;
    for (int64_t i = 0; i < kAmxRows; ++i) {
      // Elements that share a line of words: the first and the last 16 along
      // the depth, or those of an even and an odd depth.
      __m512 x, y;
      if constexpr (kDeep) {
        const __mmask32 here = i < from.outer ? mask : 0;
        const float* line = from.Line(i);
        x = _mm512_maskz_loadu_ps(static_cast<__mmask16>(here), line);
        y = _mm512_maskz_loadu_ps(static_cast<__mmask16>(here >> 16),
                                  line + from.second);
      } else {
        const auto here = static_cast<__mmask16>(mask);
        x = _mm512_maskz_loadu_ps(2 * i < from.depth ? here : 0,
                                  from.Line(2 * i));
        y = _mm512_maskz_loadu_ps(2 * i + 1 < from.depth ? here : 0,
                                  from.Line(2 * i + 1));
      }
#pragma GCC unroll 3
      for (int64_t split = 0; split < kAmxSplits; ++split) {
        const auto halves =
            reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(y, x));
        const __m512i low = WidenLow(halves), high = WidenHigh(halves);
        _mm512_store_si512(
            to + split * kPanelTile + i * kAmxDepth,
            kDeep ? halves : _mm512_or_si512(_mm512_srli_epi32(low, 16), high));
        if (split == 0) special |= IsSpecial(low) | IsSpecial(high);
        x = _mm512_sub_ps(x, reinterpret_cast<__m512>(low));
        y = _mm512_sub_ps(y, reinterpret_cast<__m512>(high));
      }
    }
    if constexpr (kDeep == kPairs) {
      for (int64_t split = 0; split < kAmxSplits; ++split) {
        uint16_t* const tile = to + split * kPanelTile;
        __m512i lines[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) {
          lines[i] = _mm512_load_si512(tile + i * kAmxDepth);
        }
        StoreLines<kPairs>(kDeep, lines, tile);
      }
    }
    return special == 0;
  }

  // Stores words of pairs along the depth: lines of `outer` if `deep`, else of
  // the depth.
  template <bool kPairs>
  FUSOR_AVX512_BF16_INLINE static void StoreLines(bool deep,
                                                  __m512i (&lines)[16],
                                                  uint16_t* to) {
    if (deep == kPairs) TransposeWords(lines);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      _mm512_store_si512(to + i * kAmxDepth, lines[i]);
    }
  }

  // The first or the last 16 elements of bf16 as words of f32.
  FUSOR_AVX512_BF16_INLINE static __m512i WidenLow(__m512i halves) {
    return _mm512_slli_epi32(
        _mm512_cvtepu16_epi32(_mm512_castsi512_si256(halves)), 16);
  }
  FUSOR_AVX512_BF16_INLINE static __m512i WidenHigh(__m512i halves) {
    return _mm512_slli_epi32(
        _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(halves, 1)), 16);
  }

  // Returns which words are NaN or infinite.
  FUSOR_AVX512_BF16_INLINE static __mmask16 IsSpecial(__m512i words) {
    return _mm512_fpclass_ps_mask(reinterpret_cast<__m512>(words), 0x99);
  }

  template <bool kTwoColumns>
  FUSOR_INLINE void LoadColumns(const uint16_t* b) {
    Load<6>(b, 64);
    if constexpr (kTwoColumns) Load<7>(b + kAmxTile, 64);
  }
  // Multiply other packed tiles of a by those of b, or of b by those of a.
  template <bool kTwoRows, bool kTwoColumns>
  FUSOR_INLINE void AddRows(const uint16_t* a) {
    Load<4>(a, 64);
    asm volatile("tdpbf16ps %%tmm6, %%tmm4, %%tmm0" ::);
    if constexpr (kTwoColumns) {
      asm volatile("tdpbf16ps %%tmm7, %%tmm4, %%tmm1" ::);
    }
    if constexpr (kTwoRows) {
      Load<5>(a + kAmxTile, 64);
      asm volatile("tdpbf16ps %%tmm6, %%tmm5, %%tmm2" ::);
      if constexpr (kTwoColumns) {
        asm volatile("tdpbf16ps %%tmm7, %%tmm5, %%tmm3" ::);
      }
    }
  }
  template <bool kTwoRows, bool kTwoColumns>
  FUSOR_INLINE void AddColumns(const uint16_t* b) {
    Load<6>(b, 64);
    asm volatile("tdpbf16ps %%tmm6, %%tmm4, %%tmm0" ::);
    if constexpr (kTwoColumns) {
      Load<7>(b + kAmxTile, 64);
      asm volatile("tdpbf16ps %%tmm7, %%tmm4, %%tmm1" ::);
    }
    if constexpr (kTwoRows) {
      asm volatile("tdpbf16ps %%tmm6, %%tmm5, %%tmm2" ::);
      if constexpr (kTwoColumns) {
        asm volatile("tdpbf16ps %%tmm7, %%tmm5, %%tmm3" ::);
      }
    }
  }

  template <int kTile>
  FUSOR_INLINE void Load(const void* from, int64_t row_bytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(row_bytes),
                 "i"(kTile)
                 : "memory");
  }
  template <int kTile>
  FUSOR_INLINE void Store(float* to) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(int64_t{64}),
                 "i"(kTile)
                 : "memory");
  }
};

// The same on other CPUs.
class PlainTiles {
 public:
  void Clear() { std::memset(sums_, 0, sizeof(sums_)); }
  void LoadSums(const TileSums& sums) {
    std::memcpy(sums_, sums, sizeof(sums_));
  }
  void StoreSums(TileSums& sums) { std::memcpy(sums, sums_, sizeof(sums_)); }

  template <bool kSplit, bool kTwoRows, bool kTwoColumns, typename Between>
  void Add(const TileProduct& p, const Between& between) {
    constexpr int kSplits = kSplit ? kAmxSplits : 1;
    for (int64_t step = 0; step < p.steps; ++step) {
      const uint16_t* a = p.a + step * p.a_step;
      const uint16_t* b = p.b + step * p.b_step;
      for (int i = 0; i <= (kTwoRows ? 1 : 0); ++i) {
        for (int j = 0; j <= (kTwoColumns ? 1 : 0); ++j) {
          for (int of_a = kSplits - 1; of_a >= 0; --of_a) {
            for (int of_b = kSplits - 1 - of_a; of_b >= 0; --of_b) {
              AddTile(a + of_a * kPanelTile + i * p.a_next, p.a_row,
                      b + of_b * kPanelTile + j * p.b_next, sums_[i][j]);
            }
          }
        }
      }
      between();
    }
  }

  template <typename To>
  static void StoreRows(const TileSums& sums, IndexRange rows, int64_t columns,
                        int64_t step, To* to, int64_t second = kAmxRows) {
    for (int64_t i = rows.begin; i < rows.end; ++i, to += step) {
      for (int64_t j = 0; j < std::min(columns, kAmxPanel); ++j) {
        Narrow(sums[i / kAmxRows][j / kAmxRows]
                   [i % kAmxRows * kAmxRows + j % kAmxRows],
               to[j / kAmxRows * second + j % kAmxRows]);
      }
    }
  }

  template <typename To>
  static void StoreColumns(const float (&sums)[kAmxSums], int64_t rows,
                           int64_t columns, int64_t step, int64_t run,
                           int64_t jump, To* to) {
    for (int64_t j = 0; j < std::min(columns, kAmxRows); ++j, to += step) {
      for (int64_t i = 0; i < std::min(rows, kAmxRows); ++i) {
        Narrow(sums[i * kAmxRows + j], to[i < run ? i : i + jump]);
      }
    }
  }

  static void PackPairs(const uint16_t* even, const uint16_t* odd, int64_t rows,
                        int64_t columns, uint16_t* to) {
    for (int64_t i = 0; i < kAmxPanel; ++i) {
      uint16_t* const pair = to + i / kAmxRows * kAmxTile + i % kAmxRows * 2;
      pair[0] = rows > 0 && i < columns ? even[i] : uint16_t{0};
      pair[1] = rows > 1 && i < columns ? odd[i] : uint16_t{0};
    }
  }

  template <bool kPairs, typename Element>
  static bool PackTile(const Corner<Element>& from, uint16_t* to) {
    bool finite = true;
    for (int64_t i = 0; i < kAmxRows; ++i) {
      for (int64_t k = 0; k < kAmxDepth; ++k) {
        const int64_t at =
            kPairs ? k / 2 * kAmxDepth + 2 * i + k % 2 : i * kAmxDepth + k;
        const Element x =
            i < from.outer && k < from.depth ? from.At(i, k) : Element{0};
        finite &= Split(x, to + at);
      }
    }
    return finite;
  }

 private:
  static bool Split(uint16_t x, uint16_t* to) {
    *to = x;
    return true;
  }
  static bool Split(float x, uint16_t* to) {
    for (int64_t split = 0; split < kAmxSplits; ++split) {
      uint16_t& part = to[split * kPanelTile];
      Narrow(x, part);
      x -= Widen(part);
    }
    return std::isfinite(Widen(*to));
  }

  static void AddTile(const uint16_t* a, int64_t a_row, const uint16_t* b,
                      float* sums) {
    // As AMX does, adds up the products of a tile before it adds them to a sum.
    for (int64_t row = 0; row < kAmxRows; ++row) {
      float products[kAmxRows] = {};
      for (int64_t k = 0; k < kAmxDepth; ++k) {
        const float x = Widen(a[row * a_row + k]);
        const uint16_t* y = b + k / 2 * kAmxDepth + k % 2;
        for (int64_t column = 0; column < kAmxRows; ++column) {
          products[column] += x * Widen(y[2 * column]);
        }
      }
      for (int64_t column = 0; column < kAmxRows; ++column) {
        sums[row * kAmxRows + column] += products[column];
      }
    }
  }

  TileSums sums_;
};

// `between` runs after each step, while the CPU multiplies.
template <bool kSplit = false, typename Tiles, typename Between>
FUSOR_INLINE void Add(Tiles& tiles, const TileProduct& p, TileGrid grid,
                      const Between& between) {
  if (grid.two_rows && grid.two_columns) {
    tiles.template Add<kSplit, true, true>(p, between);
  } else if (grid.two_rows) {
    tiles.template Add<kSplit, true, false>(p, between);
  } else if (grid.two_columns) {
    tiles.template Add<kSplit, false, true>(p, between);
  } else {
    tiles.template Add<kSplit, false, false>(p, between);
  }
}
template <typename Tiles>
FUSOR_INLINE void Add(Tiles& tiles, const TileProduct& p, TileGrid grid) {
  Add(tiles, p, grid, [] {});
}

// Stores [16, 2], pairs of elements.
FUSOR_INLINE void StorePairs(const uint16_t* even, const uint16_t* odd,
                             void* to) {
  using Words = Lanes<16>::Words;
  Lanes<16>::Halves a, b;
  std::memcpy(&a, even, sizeof(a));
  std::memcpy(&b, odd, sizeof(b));
  const Words pairs = __builtin_convertvector(a, Words) |
                      __builtin_convertvector(b, Words) << 16;
  std::memcpy(to, &pairs, sizeof(pairs));
}

FUSOR_INLINE void AddSums(const TileSums& from, TileSums& to) {
  const float* const x = from[0][0];
  float* const sum = to[0][0];
  for (int64_t i = 0; i < 4 * kAmxSums; i += kAmxRows) {
    Lanes<16>::Floats a, b;
    Load(x + i, a);
    Load(sum + i, b);
    StoreExactly(sum + i, a + b);
  }
}

// Returns whether this process may use AMX. Linux saves its registers only for
// processes that ask for it.
inline bool MayUseAmx() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return WidestIsa() == VectorIsa::kAvx512 &&
         __builtin_cpu_supports("amx-bf16") &&
         __builtin_cpu_supports("avx512bf16") &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace fusor::cpu
