// Runs Winograd convolutions in f32.

#include <algorithm>
#include <cstring>

#include "runtime/cpu/lanes.h"
#include "runtime/cpu/library_calls.h"
#include "runtime/cpu/thread_team.h"

#define FUSOR_AVX2 __attribute__((target("avx2,fma")))

namespace fusor::cpu {
namespace {

using codegen::LibraryCall;
using ir::ConvKind;
using Floats = Lanes<8>::Floats;

constexpr int64_t kBlock = kWideBlock;
constexpr int kPoints = kWidePoints;
constexpr int kSide = 6;                      // of a transformed tile
constexpr int kTaps = 9;                      // of a filter
constexpr int64_t kSquare = kBlock * kBlock;  // weights of a tap and block

// --- Transforms of a row or column, `step` vectors apart ---------------------
//
// Polynomials are evaluated at 0, kA, -kA, kB, -kB and infinity. These points,
// which oneDNN has, too, give half the error of 1 and 2. Powers up to the third
// are exact.

constexpr float kA = 0.625F, kB = 1.5F;
constexpr float kA2 = kA * kA, kB2 = kB * kB;
constexpr float kA3 = kA * kA2, kB3 = kB * kB2;
constexpr float kBoth = kA2 * kB2;
// The factors of the filter's points, by which interpolation divides.
constexpr float kOfA = 1 / (2 * kA2 * (kA2 - kB2));
constexpr float kOfB = 1 / (2 * kB2 * (kB2 - kA2));

FUSOR_INLINE void InputPoints(Floats* d, int step) {
  const Floats d0 = d[0], d1 = d[step], d2 = d[2 * step], d3 = d[3 * step],
               d4 = d[4 * step], d5 = d[5 * step];
  const Floats even = d4 - kB2 * d2, odd = kA * (d3 - kB2 * d1);
  const Floats even2 = d4 - kA2 * d2, odd2 = kB * (d3 - kA2 * d1);
  d[0] = kBoth * d0 - (kA2 + kB2) * d2 + d4;
  d[step] = even + odd;
  d[2 * step] = even - odd;
  d[3 * step] = even2 + odd2;
  d[4 * step] = even2 - odd2;
  d[5 * step] = kBoth * d1 - (kA2 + kB2) * d3 + d5;
}

// The result has four elements.
FUSOR_INLINE void ResultOfPoints(Floats* m, int step) {
  const Floats m0 = m[0], m5 = m[5 * step];
  const Floats sum = m[step] + m[2 * step], difference = m[step] - m[2 * step];
  const Floats sum2 = m[3 * step] + m[4 * step];
  const Floats difference2 = m[3 * step] - m[4 * step];
  m[0] = m0 + sum + sum2;
  m[step] = kA * difference + kB * difference2;
  m[2 * step] = kA2 * sum + kB2 * sum2;
  m[3 * step] = kA3 * difference + kB3 * difference2 + m5;
}

// The transpose, for the result's gradient, which has four elements.
FUSOR_INLINE void PointsOfResult(Floats* y, int step) {
  const Floats y0 = y[0], y1 = y[step], y2 = y[2 * step], y3 = y[3 * step];
  const Floats even = y0 + kA2 * y2, odd = kA * y1 + kA3 * y3;
  const Floats even2 = y0 + kB2 * y2, odd2 = kB * y1 + kB3 * y3;
  y[step] = even + odd;
  y[2 * step] = even - odd;
  y[3 * step] = even2 + odd2;
  y[4 * step] = even2 - odd2;
  y[5 * step] = y3;
}

// The filter has three elements.
FUSOR_INLINE void FilterPoints(Floats* g, int step) {
  const Floats g0 = g[0], g1 = g[step], g2 = g[2 * step];
  const Floats even = kOfA * (g0 + kA2 * g2), odd = kOfA * kA * g1;
  const Floats even2 = kOfB * (g0 + kB2 * g2), odd2 = kOfB * kB * g1;
  g[0] = g0 * (1 / kBoth);
  g[step] = even + odd;
  g[2 * step] = even - odd;
  g[3 * step] = even2 + odd2;
  g[4 * step] = even2 - odd2;
  g[5 * step] = g2;
}

// The transpose, for the filter's gradient, which has three elements.
FUSOR_INLINE void FilterOfPoints(Floats* u, int step) {
  const Floats sum = kOfA * (u[step] + u[2 * step]);
  const Floats difference = kOfA * (u[step] - u[2 * step]);
  const Floats sum2 = kOfB * (u[3 * step] + u[4 * step]);
  const Floats difference2 = kOfB * (u[3 * step] - u[4 * step]);
  u[0] = u[0] * (1 / kBoth) + sum + sum2;
  u[step] = kA * difference + kB * difference2;
  u[2 * step] = kA2 * sum + kB2 * sum2 + u[5 * step];
}

// --- Tiles -------------------------------------------------------------------

// A tile's image and the row and column of its first result.
struct TileOrigin {
  int64_t image, row, column;
  TileOrigin(const WideWinogradPlan& plan, int64_t tile)
      : image(tile / (plan.tile_rows() * plan.tile_columns())),
        row(tile / plan.tile_columns() % plan.tile_rows() * kWideTile),
        column(tile % plan.tile_columns() * kWideTile) {}
};

// The 6x6 transformed pixels of a block of channels, in rows of six.
using Points = Floats[kPoints];

FUSOR_INLINE void StorePoints(const Points& points, int64_t stride, float* to) {
  for (int p = 0; p < kPoints; ++p) StoreExactly(to + p * stride, points[p]);
}

// Writes a tile's transformed input, points `stride` elements apart.
// `x`: the first pixel of its image and block.
FUSOR_INLINE void TransformInput(const WideWinogradPlan& plan, const float* x,
                                 const TileOrigin& tile, int64_t stride,
                                 float* to) {
  const int64_t top = tile.row - plan.pad_height;
  const int64_t left = tile.column - plan.pad_width;
  Points d = {};
  if (top >= 0 && left >= 0 && top + kSide <= plan.in_height &&
      left + kSide <= plan.in_width) {
    for (int i = 0; i < kSide; ++i) {
      const float* row = x + ((top + i) * plan.in_width + left) * kBlock;
#pragma GCC unroll 6
      for (int j = 0; j < kSide; ++j) Load(row + j * kBlock, d[i * kSide + j]);
    }
  } else {
    for (int64_t i = 0; i < kSide; ++i) {
      for (int64_t j = 0; j < kSide; ++j) {
        const int64_t h = top + i, w = left + j;
        if (h < 0 || h >= plan.in_height || w < 0 || w >= plan.in_width) {
          continue;
        }
        Load(x + (h * plan.in_width + w) * kBlock, d[i * kSide + j]);
      }
    }
  }
  for (int i = 0; i < kSide; ++i) InputPoints(d + i * kSide, 1);
  for (int j = 0; j < kSide; ++j) InputPoints(d + j, kSide);
  StorePoints(d, stride, to);
}

// Writes the transformed gradient of a tile's results.
FUSOR_INLINE void TransformGradient(const WideWinogradPlan& plan,
                                    const float* dy, const TileOrigin& tile,
                                    int64_t stride, float* to) {
  Points m = {};
  const int64_t rows = std::min(kWideTile, plan.out_height - tile.row);
  const int64_t columns = std::min(kWideTile, plan.out_width - tile.column);
  for (int64_t i = 0; i < rows; ++i) {
    const float* row =
        dy + ((tile.row + i) * plan.out_width + tile.column) * kBlock;
    for (int64_t j = 0; j < columns; ++j) {
      Load(row + j * kBlock, m[i * kSide + j]);
    }
  }
  for (int i = 0; i < kWideTile; ++i) PointsOfResult(m + i * kSide, 1);
  for (int j = 0; j < kSide; ++j) PointsOfResult(m + j, kSide);
  StorePoints(m, stride, to);
}

// Stores a tile's results, given its products.
FUSOR_INLINE void TransformOutput(const WideWinogradPlan& plan, const float* m,
                                  int64_t stride, const TileOrigin& tile,
                                  const float* bias, float* y) {
  Points points;
  for (int p = 0; p < kPoints; ++p) Load(m + p * stride, points[p]);
  for (int j = 0; j < kSide; ++j) ResultOfPoints(points + j, kSide);
  for (int i = 0; i < kWideTile; ++i) ResultOfPoints(points + i * kSide, 1);
  Floats shift = {};
  if (bias != nullptr) Load(bias, shift);
  const int64_t rows = std::min(kWideTile, plan.out_height - tile.row);
  const int64_t columns = std::min(kWideTile, plan.out_width - tile.column);
  for (int64_t i = 0; i < rows; ++i) {
    float* row = y + ((tile.row + i) * plan.out_width + tile.column) * kBlock;
    for (int64_t j = 0; j < columns; ++j) {
      StoreExactly(row + j * kBlock, points[i * kSide + j] + shift);
    }
  }
}

// --- Products ----------------------------------------------------------------

// c[row][lane] = (c +) sum over steps of a[row][step] * b[step][lane].
struct Product {
  const float* a = nullptr;
  int64_t row_stride = 0, step_stride = 0;  // of a
  const float* b = nullptr;
  int64_t b_stride = 0;  // between steps
  float* c = nullptr;
  int64_t c_stride = 0;  // between rows
  int64_t rows = 0, steps = 0;
  bool adds = false;
};

// The rounding error of a sum grows with its length, and the transform of the
// results amplifies it. Sums of at most this many products are therefore added
// up: with 512 channels, this error is less than half that of one long sum.
constexpr int64_t kChain = 64;

template <int kRows, int kVectors>
FUSOR_INLINE void MultiplyRows(const Product& p, int64_t first) {
  const float* a = p.a + first * p.row_stride;
  const float* b = p.b;
  float* c = p.c + first * p.c_stride;
  int64_t chain = 0;
  // Runs at least once, so that a product of no steps stores zeros.
  do {
    const int64_t steps = std::min(kChain, p.steps - chain);
    Floats sum[kRows][kVectors] = {};
    for (int64_t s = 0; s < steps; ++s) {
      Floats lanes[kVectors];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) Load(b + v * kBlock, lanes[v]);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        const float x = a[r * p.row_stride];
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) sum[r][v] += x * lanes[v];
      }
      a += p.step_stride;
      b += p.b_stride;
    }
    const bool adds = p.adds || chain > 0;
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        float* to = c + r * p.c_stride + v * kBlock;
        Floats before = {};
        if (adds) Load(to, before);
        StoreExactly(to, before + sum[r][v]);
      }
    }
    chain += kChain;
  } while (chain < p.steps);
}

template <int kVectors>
FUSOR_INLINE void MultiplyAll(const Product& p) {
  int64_t row = 0;
  for (; row + 6 <= p.rows; row += 6) MultiplyRows<6, kVectors>(p, row);
  for (; row + 4 <= p.rows; row += 4) MultiplyRows<4, kVectors>(p, row);
  for (; row + 2 <= p.rows; row += 2) MultiplyRows<2, kVectors>(p, row);
  if (row < p.rows) MultiplyRows<1, kVectors>(p, row);
}

FUSOR_AVX2 void Multiply(const Product& p, int64_t vectors) {
  if (vectors == 2) {
    MultiplyAll<2>(p);
  } else {
    MultiplyAll<1>(p);
  }
}

// Returns the vectors of a group of result channels.
int64_t VectorsOf(const WideWinogradPlan& plan, int64_t group) {
  return std::min<int64_t>(2, plan.out_blocks() - 2 * group);
}

// Returns the elements between points of a group's weights.
int64_t WeightStride(const WideWinogradPlan& plan, int64_t group) {
  return plan.in_channels * VectorsOf(plan, group) * kBlock + kWidePad;
}

// --- Parts of the work -------------------------------------------------------

// Transforms the weights of these blocks of channels. A group's weights are
// [points, input channels, lanes of the group]. `u`: those of the first group.
FUSOR_AVX2 void TransformWeights(const WideWinogradPlan& plan,
                                 const float* weight, IndexRange ins,
                                 IndexRange outs, float* u) {
  const bool flipped = plan.kind == ConvKind::kGradInput;
  for (int64_t pair = 0; pair < ins.size() * outs.size(); ++pair) {
    const int64_t in = ins.begin + pair / outs.size();
    const int64_t out = outs.begin + pair % outs.size();
    const float* from = weight + (flipped ? in * plan.out_blocks() + out
                                          : out * plan.in_blocks() + in) *
                                     kTaps * kSquare;
    Floats taps[kTaps][kBlock];  // by input channel, lanes: output channels
    for (int k = 0; k < kTaps; ++k) {
      const float* tap = from + (flipped ? kTaps - 1 - k : k) * kSquare;
      for (int i = 0; i < kBlock; ++i) Load(tap + i * kBlock, taps[k][i]);
      if (flipped) Transpose(taps[k]);
    }
    const int64_t lanes = VectorsOf(plan, out / 2) * kBlock;
    float* to = u + (out - outs.begin) / 2 * plan.group_weights() +
                in * kBlock * lanes + out % 2 * kBlock;
    for (int i = 0; i < kBlock; ++i) {
      Points g = {};
      for (int k = 0; k < kTaps; ++k) g[k / 3 * kSide + k % 3] = taps[k][i];
      for (int row = 0; row < 3; ++row) FilterPoints(g + row * kSide, 1);
      for (int column = 0; column < kSide; ++column) {
        FilterPoints(g + column, kSide);
      }
      StorePoints(g, WeightStride(plan, out / 2), to + i * lanes);
    }
  }
}

// Writes the transformed input of these tiles and blocks of channels,
// [tiles, channels of the blocks].
FUSOR_AVX2 void TransformInputs(const WideWinogradPlan& plan, const float* x,
                                IndexRange tiles, IndexRange blocks, float* v) {
  const int64_t image = plan.in_height * plan.in_width * kBlock;
  for (int64_t t = tiles.begin; t < tiles.end; ++t) {
    const TileOrigin tile(plan, t);
    for (int64_t b = blocks.begin; b < blocks.end; ++b) {
      TransformInput(
          plan, x + (tile.image * plan.in_blocks() + b) * image, tile,
          plan.v_stride,
          v + ((t - tiles.begin) * blocks.size() + b - blocks.begin) * kBlock);
    }
  }
}

FUSOR_AVX2 void TransformOutputs(const WideWinogradPlan& plan, const float* m,
                                 IndexRange tiles, int64_t group,
                                 const float* bias, float* y) {
  const int64_t image = plan.out_height * plan.out_width * kBlock;
  const int64_t vectors = VectorsOf(plan, group);
  for (int64_t t = tiles.begin; t < tiles.end; ++t) {
    const TileOrigin tile(plan, t);
    for (int64_t v = 0; v < vectors; ++v) {
      const int64_t block = 2 * group + v;
      TransformOutput(plan, m + ((t - tiles.begin) * vectors + v) * kBlock,
                      plan.m_stride, tile,
                      bias == nullptr ? nullptr : bias + block * kBlock,
                      y + (tile.image * plan.out_blocks() + block) * image);
    }
  }
}

// Writes the transformed gradients of these tiles, [tiles, channels].
FUSOR_AVX2 void TransformGradients(const WideWinogradPlan& plan,
                                   const float* dy, IndexRange tiles,
                                   float* m) {
  const int64_t image = plan.out_height * plan.out_width * kBlock;
  for (int64_t t = tiles.begin; t < tiles.end; ++t) {
    const TileOrigin tile(plan, t);
    for (int64_t b = 0; b < plan.out_blocks(); ++b) {
      TransformGradient(plan, dy + (tile.image * plan.out_blocks() + b) * image,
                        tile, plan.m_stride,
                        m + (t - tiles.begin) * plan.out_channels + b * kBlock);
    }
  }
}

// Adds up the sums of all ranges of tiles and stores the weight's gradient for
// these pairs of blocks.
FUSOR_AVX2 void StoreGradients(const WideWinogradPlan& plan, const float* sums,
                               IndexRange pairs, float* weight) {
  for (int64_t pair = pairs.begin; pair < pairs.end; ++pair) {
    const int64_t in = pair / plan.out_blocks();
    const int64_t out = pair % plan.out_blocks();
    for (int64_t i = 0; i < kBlock; ++i) {
      Points u = {};
      const float* from =
          sums + (in * kBlock + i) * plan.out_channels + out * kBlock;
      for (int64_t range = 0; range < plan.tile_parts; ++range) {
        for (int p = 0; p < kPoints; ++p) {
          Floats x;
          Load(from + (range * kPoints + p) * plan.sum_stride(), x);
          u[p] += x;
        }
      }
      for (int row = 0; row < kSide; ++row) FilterOfPoints(u + row * kSide, 1);
      for (int column = 0; column < 3; ++column) {
        FilterOfPoints(u + column, kSide);
      }
      for (int k = 0; k < kTaps; ++k) {
        StoreExactly(weight +
                         ((out * plan.in_blocks() + in) * kTaps + k) * kSquare +
                         i * kBlock,
                     u[k / 3 * kSide + k % 3]);
      }
    }
  }
}

// args: operands, result, workspace.
class WideWinogradExecutable final : public CpuExecutable {
 public:
  WideWinogradExecutable(const LibraryCall& call, const WideWinogradPlan& plan)
      : CpuExecutable(call), plan_(plan) {}

  void Run(void* const* args) const override {
    const bool gradient = plan_.kind == ConvKind::kGradWeight;
    void* const* rest = args + (plan_.bias ? 3 : 2);
    auto* shared = static_cast<float*>(rest[1]);
    auto* result = static_cast<float*>(rest[0]);
    const auto* a = static_cast<const float*>(args[0]);
    const auto* b = static_cast<const float*>(args[1]);
    const auto* bias =
        plan_.bias ? static_cast<const float*>(args[2]) : nullptr;
    const int64_t pairs = plan_.in_blocks() * plan_.out_blocks();
    if (!gradient && !plan_.has_own_weights()) {
      ForParts(plan_.parts(), [&](int64_t part) {
        TransformWeights(plan_, b,
                         Share(plan_.in_blocks(), part, plan_.parts()),
                         {0, plan_.out_blocks()}, shared);
      });
    }
    ForParts(plan_.parts(), [&](int64_t part) {
      const int64_t tile_part = part / plan_.channel_parts;
      const IndexRange all = Share(plan_.tiles(), tile_part, plan_.tile_parts);
      float* own = shared + plan_.shared() + part * plan_.part();
      // Runs at least once, so that a part without tiles stores zero sums.
      int64_t t = all.begin;
      do {
        const IndexRange tiles{t, std::min(t + plan_.block, all.end)};
        if (gradient) {
          Accumulate(a, b, tiles, OwnOf(plan_.in_blocks(), part), t > all.begin,
                     own, shared + tile_part * kPoints * plan_.sum_stride());
        } else {
          Convolve(a, b, shared, tiles, OwnOf(plan_.out_groups(), part), bias,
                   own, result);
        }
        t += plan_.block;
      } while (t < all.end);
    });
    if (gradient) {
      ForParts(plan_.parts(), [&](int64_t part) {
        StoreGradients(plan_, shared, Share(pairs, part, plan_.parts()),
                       result);
      });
    }
  }

 private:
  // Returns the part's share of blocks or groups of channels.
  IndexRange OwnOf(int64_t total, int64_t part) const {
    return Share(total, part % plan_.channel_parts, plan_.channel_parts);
  }

  // `u`: all transformed weights, unless the part has its own.
  void Convolve(const float* x, const float* weight, const float* u,
                IndexRange tiles, IndexRange groups, const float* bias,
                float* v, float* y) const {
    float* m = v + kPoints * plan_.v_stride;
    float* own = m + kPoints * plan_.m_stride;
    TransformInputs(plan_, x, tiles, {0, plan_.in_blocks()}, v);
    for (int64_t group = groups.begin; group < groups.end; ++group) {
      const int64_t lanes = VectorsOf(plan_, group) * kBlock;
      const float* weights = u + group * plan_.group_weights();
      if (plan_.has_own_weights()) {
        const int64_t first = 2 * group;
        TransformWeights(plan_, weight, {0, plan_.in_blocks()},
                         {first, first + lanes / kBlock}, own);
        weights = own;
      }
      for (int64_t p = 0; p < kPoints; ++p) {
        Multiply({.a = v + p * plan_.v_stride,
                  .row_stride = plan_.in_channels,
                  .step_stride = 1,
                  .b = weights + p * WeightStride(plan_, group),
                  .b_stride = lanes,
                  .c = m + p * plan_.m_stride,
                  .c_stride = lanes,
                  .rows = tiles.size(),
                  .steps = plan_.in_channels},
                 lanes / kBlock);
      }
      TransformOutputs(plan_, m, tiles, group, bias, y);
    }
  }

  void Accumulate(const float* x, const float* dy, IndexRange tiles,
                  IndexRange blocks, bool adds, float* v, float* sums) const {
    float* m = v + kPoints * plan_.v_stride;
    const int64_t channels = blocks.size() * kBlock;
    TransformInputs(plan_, x, tiles, blocks, v);
    TransformGradients(plan_, dy, tiles, m);
    for (int64_t p = 0; p < kPoints; ++p) {
      float* c = sums + p * plan_.sum_stride() +
                 blocks.begin * kBlock * plan_.out_channels;
      for (int64_t group = 0; group < plan_.out_groups(); ++group) {
        Multiply({.a = v + p * plan_.v_stride,
                  .row_stride = 1,
                  .step_stride = channels,
                  .b = m + p * plan_.m_stride + group * kWideGroup,
                  .b_stride = plan_.out_channels,
                  .c = c + group * kWideGroup,
                  .c_stride = plan_.out_channels,
                  .rows = channels,
                  .steps = tiles.size(),
                  .adds = adds},
                 VectorsOf(plan_, group));
      }
    }
  }

  const WideWinogradPlan plan_;
};

}  // namespace

std::unique_ptr<CpuExecutable> MakeExecutable(const LibraryCall& call,
                                              const WideWinogradPlan& plan) {
  return std::make_unique<WideWinogradExecutable>(call, plan);
}

}  // namespace fusor::cpu
