#include "runtime/cpu/winograd_kernels.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "runtime/cpu/lanes.h"

// GCC 12 warns about the undefined operands of its own intrinsics.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace fusor::cpu {
namespace {

constexpr int kPoints = kWinogradPoints;
constexpr int64_t kBlock = kWinogradBlock;
constexpr int kTaps = 9;
constexpr int64_t kWeightBlock = kTaps * kBlock * kBlock;  // elements

FUSOR_AVX512_BF16_INLINE __m512 Load(const uint16_t* from) {
  const __m512i wide = _mm512_cvtepu16_epi32(
      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

FUSOR_AVX512_BF16_INLINE void Store(uint16_t* to, __m512 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
}

FUSOR_AVX512_BF16_INLINE void Store(float* to, __m512 x) {
  _mm512_storeu_ps(to, x);
}

// Returns the sixteen elements of `low`, then those of `high`, as bf16.
FUSOR_AVX512_BF16_INLINE __m512i Narrow(__m512 low, __m512 high) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

// Returns the elements of `low` and `high` interleaved, as bf16.
FUSOR_AVX512_BF16_INLINE __m512i NarrowPairs(__m512 low, __m512 high) {
  alignas(64) static constexpr uint16_t kByTurns[] = {
      0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_permutexvar_epi16(_mm512_load_si512(kByTurns),
                                  Narrow(low, high));
}

// Iterates over tiles.
struct TileWalk {
  int64_t image, row, column;

  TileWalk(const WinogradShape& shape, int64_t tile)
      : image(tile / (shape.tile_rows() * shape.tile_columns())),
        row(tile / shape.tile_columns() % shape.tile_rows()),
        column(tile % shape.tile_columns()) {}

  void Next(const WinogradShape& shape) {
    if (++column < shape.tile_columns()) return;
    column = 0;
    if (++row < shape.tile_rows()) return;
    row = 0;
    ++image;
  }
};

// A tile's elements of one block of channels in one image.
struct Window {
  const uint16_t* plane;  // [height][width][16]
  int64_t height, width;
  int64_t row, column;  // of the first element; zeros outside the image
};

template <int kSize, bool kInside>
FUSOR_AVX512_BF16_INLINE void LoadWindow(const Window& w,
                                         __m512 (&d)[kSize][kSize]) {
#pragma GCC unroll 4
  for (int r = 0; r < kSize; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kSize; ++c) {
      const int64_t row = w.row + r, column = w.column + c;
      const bool inside = kInside || (row >= 0 && row < w.height &&
                                      column >= 0 && column < w.width);
      d[r][c] = inside ? Load(w.plane + (row * w.width + column) * kBlock)
                       : _mm512_setzero_ps();
    }
  }
}

// Computes B^T d B of an input tile.
struct InputTile {
  static Window At(const WinogradShape& shape, const uint16_t* x, int64_t block,
                   const TileWalk& tile) {
    const int64_t plane = tile.image * shape.in_blocks() + block;
    return {x + plane * shape.in_height * shape.in_width * kBlock,
            shape.in_height, shape.in_width, 2 * tile.row - shape.pad_height,
            2 * tile.column - shape.pad_width};
  }

  static constexpr int kSize = 4;
  FUSOR_AVX512_BF16_INLINE static void Transform(const __m512 (&d)[4][4],
                                                 __m512* points) {
    __m512 t[4][4];
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      t[0][c] = d[0][c] - d[2][c];
      t[1][c] = d[1][c] + d[2][c];
      t[2][c] = d[2][c] - d[1][c];
      t[3][c] = d[1][c] - d[3][c];
    }
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      points[4 * r] = t[r][0] - t[r][2];
      points[4 * r + 1] = t[r][1] + t[r][2];
      points[4 * r + 2] = t[r][2] - t[r][1];
      points[4 * r + 3] = t[r][1] - t[r][3];
    }
  }
};

// Computes A r A^T of a result tile, without the sign of the last row and
// column.
struct ResultTile {
  static Window At(const WinogradShape& shape, const uint16_t* y, int64_t block,
                   const TileWalk& tile) {
    const int64_t plane = tile.image * shape.out_blocks() + block;
    return {y + plane * shape.out_height * shape.out_width * kBlock,
            shape.out_height, shape.out_width, 2 * tile.row, 2 * tile.column};
  }

  static constexpr int kSize = 2;
  FUSOR_AVX512_BF16_INLINE static void Transform(const __m512 (&d)[2][2],
                                                 __m512* points) {
    __m512 t[4][2];
#pragma GCC unroll 2
    for (int c = 0; c < 2; ++c) {
      t[0][c] = d[0][c];
      t[1][c] = d[0][c] + d[1][c];
      t[2][c] = d[0][c] - d[1][c];
      t[3][c] = d[1][c];
    }
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      points[4 * r] = t[r][0];
      points[4 * r + 1] = t[r][0] + t[r][1];
      points[4 * r + 2] = t[r][0] - t[r][1];
      points[4 * r + 3] = t[r][1];
    }
  }
};

template <typename Tile>
FUSOR_AVX512_BF16_INLINE void LoadPoints(const WinogradShape& shape,
                                         const uint16_t* data, int64_t block,
                                         const TileWalk& tile, __m512* points) {
  const Window w = Tile::At(shape, data, block, tile);
  __m512 d[Tile::kSize][Tile::kSize];
  if (w.row >= 0 && w.row + Tile::kSize <= w.height && w.column >= 0 &&
      w.column + Tile::kSize <= w.width) {
    LoadWindow<Tile::kSize, true>(w, d);
  } else {
    LoadWindow<Tile::kSize, false>(w, d);
  }
  Tile::Transform(d, points);
}

FUSOR_AVX512_BF16_INLINE void Clear(__m512* points) {
#pragma GCC unroll 16
  for (int p = 0; p < kPoints; ++p) points[p] = _mm512_setzero_ps();
}

template <typename Tile>
FUSOR_AVX512_BF16 void PairTiles(const WinogradShape& shape,
                                 const uint16_t* data, int64_t block,
                                 IndexRange tiles, uint16_t* out,
                                 int64_t stride, int64_t step) {
  TileWalk tile(shape, tiles.begin);
  for (int64_t t = tiles.begin; t < tiles.end; t += 2, out += step) {
    __m512 low[kPoints], high[kPoints];
    LoadPoints<Tile>(shape, data, block, tile, low);
    tile.Next(shape);
    if (t + 1 < tiles.end) {
      LoadPoints<Tile>(shape, data, block, tile, high);
      tile.Next(shape);
    } else {
      Clear(high);
    }
#pragma GCC unroll 16
    for (int p = 0; p < kPoints; ++p) {
      _mm512_storeu_si512(out + p * stride, NarrowPairs(low[p], high[p]));
    }
  }
}

// Multiplies G by three vectors.
FUSOR_AVX512_BF16_INLINE void ToPoints(__m512 a, __m512 b, __m512 c,
                                       __m512 (&points)[4]) {
  const __m512 half = _mm512_set1_ps(0.5F);
  const __m512 outer = (a + c) * half, inner = b * half;
  points[0] = a;
  points[1] = outer + inner;
  points[2] = outer - inner;
  points[3] = c;
}

// Computes G k G^T of one input channel's weights for 16 result channels.
// `channel`: their first tap; the nine taps are 16x16 elements apart.
FUSOR_AVX512_BF16_INLINE void LoadKernel(const uint16_t* channel, bool flipped,
                                         __m512* points) {
  __m512 t[3][4];
#pragma GCC unroll 3
  for (int c = 0; c < 3; ++c) {
    __m512 k[3];
#pragma GCC unroll 3
    for (int r = 0; r < 3; ++r) {
      const int tap = 3 * r + c;
      k[r] =
          Load(channel + (flipped ? kTaps - 1 - tap : tap) * kBlock * kBlock);
    }
    ToPoints(k[0], k[1], k[2], t[c]);
  }
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    __m512 row[4];
    ToPoints(t[0][r], t[1][r], t[2][r], row);
    std::copy_n(row, 4, points + 4 * r);
  }
}

}  // namespace

FUSOR_AVX512_BF16 void TransformInput(const WinogradShape& shape,
                                      const uint16_t* x, IndexRange tiles,
                                      uint16_t* v, int64_t stride) {
  for (int64_t block = 0; block < shape.in_blocks(); block += 2) {
    TileWalk tile(shape, tiles.begin);
    uint16_t* out = v + block * kBlock;
    for (int64_t t = tiles.begin; t < tiles.end; ++t) {
      __m512 low[kPoints], high[kPoints];
      LoadPoints<InputTile>(shape, x, block, tile, low);
      if (block + 1 < shape.in_blocks()) {
        LoadPoints<InputTile>(shape, x, block + 1, tile, high);
      } else {
        Clear(high);
      }
#pragma GCC unroll 16
      for (int p = 0; p < kPoints; ++p) {
        _mm512_storeu_si512(out + p * stride, Narrow(low[p], high[p]));
      }
      tile.Next(shape);
      out += shape.padded_in_channels();
    }
  }
}

FUSOR_AVX512_BF16 void TransformWeight(const WinogradShape& shape,
                                       const uint16_t* weight, bool flipped,
                                       IndexRange pairs, uint16_t* u) {
  const int64_t in_channels = shape.padded_in_channels();
  for (int64_t pair = pairs.begin; pair < pairs.end; ++pair) {
    const int64_t out = pair / (in_channels / kBlock);
    const int64_t in = pair % (in_channels / kBlock);
    const int64_t group = out / kWinogradGroup;
    const int64_t row = shape.group_blocks(group) * 2 * kBlock;
    uint16_t* to = u + group * kWinogradGroup * kBlock * kPoints * in_channels +
                   in * kBlock / 2 * row + out % kWinogradGroup * 2 * kBlock;
    const uint16_t* from = weight + (flipped ? in * shape.out_blocks() + out
                                             : out * shape.in_blocks() + in) *
                                        kWeightBlock;
    for (int64_t k = 0; k < kBlock; k += 2, from += 2 * kBlock, to += row) {
      __m512 low[kPoints], high[kPoints];
      if (in < shape.in_blocks()) {
        LoadKernel(from, flipped, low);
        LoadKernel(from + kBlock, flipped, high);
      } else {
        Clear(low);
        Clear(high);
      }
#pragma GCC unroll 16
      for (int p = 0; p < kPoints; ++p) {
        _mm512_storeu_si512(to + p * in_channels / 2 * row,
                            NarrowPairs(low[p], high[p]));
      }
    }
  }
}

namespace {

// The results of kRows rows stay in registers: 6 by 4 of the 32 vectors.
constexpr int kMaxRows = 6;

template <int kRows, int kVectors>
FUSOR_AVX512_BF16 void MultiplyRows(const WinogradProduct& product,
                                    int64_t row) {
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

void Multiply(const WinogradProduct& product) {
  for (int64_t row = 0; row < product.rows; row += kMaxRows) {
    const int64_t rows = std::min<int64_t>(product.rows - row, kMaxRows);
    kMultiplyRows[rows - 1][product.vectors - 1](product, row);
  }
}

FUSOR_AVX512_BF16 void TransformOutput(const WinogradShape& shape,
                                       const float* m, int64_t stride,
                                       IndexRange tiles, int64_t group,
                                       const WinogradEpilogue& epilogue,
                                       uint16_t* y) {
  const int64_t blocks = shape.group_blocks(group);
  const int64_t plane = shape.out_height * shape.out_width * kBlock;
  const __m512 least = _mm512_set1_ps(
      epilogue.relu ? 0 : -std::numeric_limits<float>::infinity());
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t block = group * kWinogradGroup + b;
    const __m512 bias = epilogue.bias != nullptr
                            ? _mm512_loadu_ps(epilogue.bias + block * kBlock)
                            : _mm512_setzero_ps();
    TileWalk tile(shape, tiles.begin);
    const float* from = m + b * kBlock;
    for (int64_t t = tiles.begin; t < tiles.end; ++t, from += blocks * kBlock) {
      __m512 s[2][4];
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) {
        __m512 point[4];
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r) {
          point[r] = _mm512_load_ps(from + (4 * r + c) * stride);
        }
        s[0][c] = point[0] + point[1] + point[2];
        s[1][c] = point[1] - point[2] - point[3];
      }
      const int64_t row = 2 * tile.row, column = 2 * tile.column;
      uint16_t* to = y + (tile.image * shape.out_blocks() + block) * plane +
                     (row * shape.out_width + column) * kBlock;
#pragma GCC unroll 2
      for (int r = 0; r < 2; ++r) {
        if (row + r >= shape.out_height) break;
        const __m512 left = s[r][0] + s[r][1] + s[r][2] + bias;
        const __m512 right = s[r][1] - s[r][2] - s[r][3] + bias;
        Store(to, _mm512_max_ps(least, left));
        if (column + 1 < shape.out_width) {
          Store(to + kBlock, _mm512_max_ps(least, right));
        }
        to += shape.out_width * kBlock;
      }
      tile.Next(shape);
    }
  }
}

void PairInputTiles(const WinogradShape& shape, const uint16_t* x,
                    int64_t block, IndexRange tiles, uint16_t* out,
                    int64_t stride, int64_t step) {
  PairTiles<InputTile>(shape, x, block, tiles, out, stride, step);
}

void PairResultTiles(const WinogradShape& shape, const uint16_t* dy,
                     int64_t block, IndexRange tiles, uint16_t* out,
                     int64_t stride, int64_t step) {
  PairTiles<ResultTile>(shape, dy, block, tiles, out, stride, step);
}

namespace {

// Multiplies G^T by four points, the last one negated.
FUSOR_AVX512_BF16_INLINE void FromPoints(const __m512 (&points)[4],
                                         __m512 (&taps)[3]) {
  const __m512 half = _mm512_set1_ps(0.5F);
  const __m512 sum = (points[1] + points[2]) * half;
  taps[0] = points[0] + sum;
  taps[1] = (points[1] - points[2]) * half;
  taps[2] = sum - points[3];
}

template <typename Element>
FUSOR_AVX512_BF16 void TransformInto(const WinogradShape& shape,
                                     const float* parts, int64_t count,
                                     int64_t part_stride, IndexRange pairs,
                                     Element* dw) {
  for (int64_t pair = pairs.begin; pair < pairs.end; ++pair) {
    const int64_t out = pair / shape.in_blocks(), in = pair % shape.in_blocks();
    const int64_t group = out / kWinogradGroup;
    const int64_t row = shape.group_blocks(group) * kBlock;
    const float* from =
        parts + group * kWinogradGroup * kBlock * kPoints * shape.in_channels +
        in * kBlock * row + out % kWinogradGroup * kBlock;
    Element* to = dw + pair * kWeightBlock;
    for (int64_t i = 0; i < kBlock; ++i, from += row, to += kBlock) {
      __m512 t[4][3];
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) {
        __m512 points[4];
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r) {
          const float* sum = from + (4 * r + c) * shape.in_channels * row;
          points[r] = _mm512_loadu_ps(sum);
          for (int64_t part = 1; part < count; ++part) {
            points[r] += _mm512_loadu_ps(sum + part * part_stride);
          }
        }
        FromPoints(points, t[c]);
      }
#pragma GCC unroll 3
      for (int r = 0; r < 3; ++r) {
        const __m512 row_points[4] = {t[0][r], t[1][r], t[2][r], t[3][r]};
        __m512 taps[3];
        FromPoints(row_points, taps);
#pragma GCC unroll 3
        for (int c = 0; c < 3; ++c) {
          Store(to + (3 * r + c) * kBlock * kBlock, taps[c]);
        }
      }
    }
  }
}

}  // namespace

void TransformWeightGradient(const WinogradShape& shape, const float* parts,
                             int64_t count, int64_t part_stride,
                             IndexRange pairs, float* dw) {
  TransformInto(shape, parts, count, part_stride, pairs, dw);
}

void TransformWeightGradient(const WinogradShape& shape, const float* parts,
                             int64_t count, int64_t part_stride,
                             IndexRange pairs, uint16_t* dw) {
  TransformInto(shape, parts, count, part_stride, pairs, dw);
}

}  // namespace fusor::cpu
