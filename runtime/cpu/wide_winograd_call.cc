// Runs Winograd convolutions in f32.

#include <algorithm>
#include <cstring>

#include "runtime/cpu/lanes.h"
#include "runtime/cpu/library_calls.h"
#include "runtime/cpu/thread_team.h"

namespace fusor::cpu {
namespace {

using codegen::LibraryCall;
using ir::ConvKind;

constexpr int kPoints = kWidePoints;
constexpr int kSide = 6;  // of a transformed tile
constexpr int kTaps = 9;  // of a filter

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

template <typename Floats>
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
template <typename Floats>
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
template <typename Floats>
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
template <typename Floats>
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
template <typename Floats>
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

// Where a tensor's channels are. A pixel has `contiguous` of them, which are
// all or a block of the layout.
struct Pixels {
  int64_t channels, contiguous, pixels;

  // Returns the offset of an image's first pixel of a channel.
  int64_t Offset(int64_t image, int64_t channel) const {
    return (image * channels + channel / contiguous * contiguous) * pixels +
           channel % contiguous;
  }
};

Pixels InputOf(const WideWinogradPlan& plan) {
  return {plan.groups * plan.in_channels, plan.in_contiguous,
          plan.in_height * plan.in_width};
}
Pixels OutputOf(const WideWinogradPlan& plan) {
  return {plan.groups * plan.out_channels, plan.out_contiguous,
          plan.out_height * plan.out_width};
}

// A tile's image and the row and column of its first result.
struct TileOrigin {
  int64_t image, row, column;
  TileOrigin(const WideWinogradPlan& plan, int64_t tile)
      : image(tile / (plan.tile_rows() * plan.tile_columns())),
        row(tile / plan.tile_columns() % plan.tile_rows() * kWideTile),
        column(tile % plan.tile_columns() * kWideTile) {}
};

template <int kLanes>
using FloatsOf = typename Lanes<kLanes>::Floats;

// The 6x6 transformed pixels of a chunk of channels, in rows of six.
template <int kChunk>
using Points = FloatsOf<kChunk>[kPoints];

template <int kChunk>
FUSOR_INLINE void StorePoints(const FloatsOf<kChunk> (&points)[kPoints],
                              int64_t stride, float* to) {
  for (int p = 0; p < kPoints; ++p) StoreExactly(to + p * stride, points[p]);
}

// Writes a tile's transformed input, points `stride` elements apart.
// `x`: the first pixel of its image and chunk.
template <int kChunk>
FUSOR_INLINE void TransformInput(const WideWinogradPlan& plan, const float* x,
                                 const TileOrigin& tile, int64_t stride,
                                 float* to) {
  const int64_t top = tile.row - plan.pad_height;
  const int64_t left = tile.column - plan.pad_width;
  const int64_t pixel = plan.in_contiguous;
  Points<kChunk> d = {};
  if (top >= 0 && left >= 0 && top + kSide <= plan.in_height &&
      left + kSide <= plan.in_width) {
    for (int i = 0; i < kSide; ++i) {
      const float* row = x + ((top + i) * plan.in_width + left) * pixel;
#pragma GCC unroll 6
      for (int j = 0; j < kSide; ++j) Load(row + j * pixel, d[i * kSide + j]);
    }
  } else {
    for (int64_t i = 0; i < kSide; ++i) {
      for (int64_t j = 0; j < kSide; ++j) {
        const int64_t h = top + i, w = left + j;
        if (h < 0 || h >= plan.in_height || w < 0 || w >= plan.in_width) {
          continue;
        }
        Load(x + (h * plan.in_width + w) * pixel, d[i * kSide + j]);
      }
    }
  }
  for (int i = 0; i < kSide; ++i) InputPoints(d + i * kSide, 1);
  for (int j = 0; j < kSide; ++j) InputPoints(d + j, kSide);
  StorePoints<kChunk>(d, stride, to);
}

// Writes the transformed gradient of a tile's results.
template <int kChunk>
FUSOR_INLINE void TransformGradient(const WideWinogradPlan& plan,
                                    const float* dy, const TileOrigin& tile,
                                    int64_t stride, float* to) {
  Points<kChunk> m = {};
  const int64_t rows = std::min(kWideTile, plan.out_height - tile.row);
  const int64_t columns = std::min(kWideTile, plan.out_width - tile.column);
  for (int64_t i = 0; i < rows; ++i) {
    const float* row = dy + ((tile.row + i) * plan.out_width + tile.column) *
                                plan.out_contiguous;
    for (int64_t j = 0; j < columns; ++j) {
      Load(row + j * plan.out_contiguous, m[i * kSide + j]);
    }
  }
  for (int i = 0; i < kWideTile; ++i) PointsOfResult(m + i * kSide, 1);
  for (int j = 0; j < kSide; ++j) PointsOfResult(m + j, kSide);
  StorePoints<kChunk>(m, stride, to);
}

// Stores a tile's results, given its products.
template <int kChunk>
FUSOR_INLINE void TransformOutput(const WideWinogradPlan& plan, const float* m,
                                  int64_t stride, const TileOrigin& tile,
                                  const float* bias, float* y) {
  Points<kChunk> points;
  for (int p = 0; p < kPoints; ++p) Load(m + p * stride, points[p]);
  for (int j = 0; j < kSide; ++j) ResultOfPoints(points + j, kSide);
  for (int i = 0; i < kWideTile; ++i) ResultOfPoints(points + i * kSide, 1);
  FloatsOf<kChunk> shift = {};
  if (bias != nullptr) Load(bias, shift);
  const int64_t rows = std::min(kWideTile, plan.out_height - tile.row);
  const int64_t columns = std::min(kWideTile, plan.out_width - tile.column);
  for (int64_t i = 0; i < rows; ++i) {
    float* row = y + ((tile.row + i) * plan.out_width + tile.column) *
                         plan.out_contiguous;
    for (int64_t j = 0; j < columns; ++j) {
      StoreExactly(row + j * plan.out_contiguous,
                   points[i * kSide + j] + shift);
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

template <int kLanes, int kRows, int kVectors>
FUSOR_INLINE void MultiplyRows(const Product& p, int64_t first) {
  using Floats = FloatsOf<kLanes>;
  // Few pointers and one stride address all rows of a.
  constexpr int kPointers = (kRows + 2) / 3;
  const float* a[kPointers];
#pragma GCC unroll 4
  for (int i = 0; i < kPointers; ++i) {
    a[i] = p.a + (first + 3 * i) * p.row_stride;
  }
  const float* b = p.b;
  float* c = p.c + first * p.c_stride;
  Floats sum[kRows][kVectors] = {};
  for (int64_t s = 0; s < p.steps; ++s) {
    Floats lanes[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) Load(b + v * kLanes, lanes[v]);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const float x = a[r / 3][r % 3 * p.row_stride];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sum[r][v] += x * lanes[v];
    }
#pragma GCC unroll 4
    for (int i = 0; i < kPointers; ++i) a[i] += p.step_stride;
    b += p.b_stride;
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      float* to = c + r * p.c_stride + v * kLanes;
      Floats before = {};
      if (p.adds) Load(to, before);
      StoreExactly(to, before + sum[r][v]);
    }
  }
}

template <int kLanes, int kRows, int kVectors>
FUSOR_INLINE void MultiplyFrom(const Product& p, int64_t row) {
  for (; row + kRows <= p.rows; row += kRows) {
    MultiplyRows<kLanes, kRows, kVectors>(p, row);
  }
  if constexpr (kRows > 1) {
    MultiplyFrom<kLanes, kRows == 6 ? 4 : kRows / 2, kVectors>(p, row);
  }
}

// The rounding error of a sum grows with its length, and the transform of the
// results amplifies it. Sums of at most this many products are therefore added
// up: with 512 channels, this error is about a third of one long sum's.
constexpr int64_t kChain = 16;

template <int kLanes>
FUSOR_INLINE void Multiply(Product p, int64_t vectors) {
  // The sums take most of 16 or 32 registers.
  constexpr int kRows = kLanes == 16 ? 12 : 6;
  const int64_t steps = p.steps;
  // Runs at least once, so that a product of no steps stores zeros.
  int64_t done = 0;
  do {
    p.steps = std::min(kChain, steps - done);
    if (vectors == 2) {
      MultiplyFrom<kLanes, kRows, 2>(p, 0);
    } else {
      MultiplyFrom<kLanes, kRows, 1>(p, 0);
    }
    done += p.steps;
    p.a += p.steps * p.step_stride;
    p.b += p.steps * p.b_stride;
    p.adds = true;
  } while (done < steps);
}

// Returns the vectors of a panel of result channels.
int64_t VectorsOf(const WideWinogradPlan& plan, int64_t panel) {
  const int64_t left = plan.out_channels - panel * plan.panel_channels();
  return std::min<int64_t>(2, CeilDiv(left, plan.lanes));
}

// Returns the chunks of a panel.
IndexRange ChunksOf(const WideWinogradPlan& plan, int64_t panel) {
  const int64_t first = panel * plan.panel_chunks();
  return {first, std::min(first + plan.panel_chunks(), plan.out_chunks())};
}

// Returns the elements between points of a panel's weights.
int64_t WeightStride(const WideWinogradPlan& plan, int64_t panel) {
  return plan.in_channels * VectorsOf(plan, panel) * plan.lanes + kWidePad;
}

// Returns where the results' points of the panel start, which is the
// `number`th. Their layout is [points, panels, tiles, lanes of the panel].
float* ResultsOf(const WideWinogradPlan& plan, float* m, int64_t number,
                 IndexRange tiles) {
  return m + number * plan.panel_channels() * tiles.size();
}

// --- Parts of the work -------------------------------------------------------

struct Arguments {
  const float* a = nullptr;  // operands
  const float* b = nullptr;
  const float* bias = nullptr;
  float* result = nullptr;
  float* workspace = nullptr;
};

// Returns the elements of a group's weights.
int64_t WeightsOf(const WideWinogradPlan& plan) {
  return plan.in_channels * plan.out_channels * kTaps;
}

// Transforms the weights of these chunks of a group's input channels and of
// these panels. A panel's weights are [points, input channels, lanes of the
// panel], 0 beyond the result channels. `weight`: the group's. `u`: those of
// the first panel.
template <int kChunk>
FUSOR_INLINE void TransformWeights(const WideWinogradPlan& plan,
                                   const float* weight, IndexRange ins,
                                   IndexRange panels, float* u) {
  const bool flipped = plan.kind == ConvKind::kGradInput;
  for (int64_t in = ins.begin; in < ins.end; ++in) {
    for (int64_t panel = panels.begin; panel < panels.end; ++panel) {
      const IndexRange chunks = ChunksOf(plan, panel);
      const int64_t lanes = VectorsOf(plan, panel) * plan.lanes;
      const int64_t stride = WeightStride(plan, panel);
      float* first = u + (panel - panels.begin) * plan.panel_weights() +
                     in * kChunk * lanes;
      for (int64_t out = chunks.begin; out < chunks.end; ++out) {
        const float* from = weight + (flipped ? in * plan.out_chunks() + out
                                              : out * plan.in_chunks() + in) *
                                         kTaps * kChunk * kChunk;
        // By input channel; lanes are output channels.
        FloatsOf<kChunk> taps[kTaps][kChunk];
        for (int k = 0; k < kTaps; ++k) {
          const float* tap =
              from + (flipped ? kTaps - 1 - k : k) * kChunk * kChunk;
          alignas(64) float transposed[kChunk * kChunk];
          if (flipped) {
            TransposeMatrix(tap, kChunk, kChunk, kChunk, transposed, kChunk);
            tap = transposed;
          }
          for (int i = 0; i < kChunk; ++i) Load(tap + i * kChunk, taps[k][i]);
        }
        float* to = first + (out - chunks.begin) * kChunk;
        for (int i = 0; i < kChunk; ++i) {
          Points<kChunk> g = {};
          for (int k = 0; k < kTaps; ++k) g[k / 3 * kSide + k % 3] = taps[k][i];
          for (int row = 0; row < 3; ++row) FilterPoints(g + row * kSide, 1);
          for (int column = 0; column < kSide; ++column) {
            FilterPoints(g + column, kSide);
          }
          StorePoints<kChunk>(g, stride, to + i * lanes);
        }
      }
      for (int64_t lane = chunks.size() * kChunk; lane < lanes;
           lane += kChunk) {
        for (int i = 0; i < kChunk; ++i) {
          StorePoints<kChunk>({}, stride, first + i * lanes + lane);
        }
      }
    }
  }
}

// Writes the transformed input of these tiles and chunks of a group's channels,
// [tiles, channels of the chunks].
template <int kChunk>
FUSOR_INLINE void TransformInputs(const WideWinogradPlan& plan, const float* x,
                                  int64_t group, IndexRange tiles,
                                  IndexRange chunks, float* v) {
  const Pixels input = InputOf(plan);
  for (int64_t t = tiles.begin; t < tiles.end; ++t) {
    const TileOrigin tile(plan, t);
    for (int64_t c = chunks.begin; c < chunks.end; ++c) {
      const int64_t channel = group * plan.in_channels + c * kChunk;
      TransformInput<kChunk>(
          plan, x + input.Offset(tile.image, channel), tile, plan.v_stride,
          v + (t - tiles.begin) * plan.v_row + (c - chunks.begin) * kChunk);
    }
  }
}

// Stores the results of these tiles and of a panel of a group, given their
// products.
template <int kChunk>
FUSOR_INLINE void TransformOutputs(const WideWinogradPlan& plan, const float* m,
                                   int64_t group, IndexRange tiles,
                                   int64_t panel, const float* bias, float* y) {
  const Pixels output = OutputOf(plan);
  const IndexRange chunks = ChunksOf(plan, panel);
  const int64_t lanes = VectorsOf(plan, panel) * plan.lanes;
  for (int64_t t = tiles.begin; t < tiles.end; ++t) {
    const TileOrigin tile(plan, t);
    for (int64_t c = chunks.begin; c < chunks.end; ++c) {
      const int64_t channel = group * plan.out_channels + c * kChunk;
      TransformOutput<kChunk>(
          plan, m + (t - tiles.begin) * lanes + (c - chunks.begin) * kChunk,
          plan.m_stride, tile, bias == nullptr ? nullptr : bias + channel,
          y + output.Offset(tile.image, channel));
    }
  }
}

// Writes the transformed gradients of these tiles of a group: for each panel
// [tiles, lanes of the panel], 0 beyond the result channels.
template <int kChunk>
FUSOR_INLINE void TransformGradients(const WideWinogradPlan& plan,
                                     const float* dy, int64_t group,
                                     IndexRange tiles, float* m) {
  const Pixels output = OutputOf(plan);
  for (int64_t t = tiles.begin; t < tiles.end; ++t) {
    const TileOrigin tile(plan, t);
    for (int64_t c = 0; c < plan.sum_row() / kChunk; ++c) {
      const int64_t panel = c / plan.panel_chunks();
      const int64_t channel = group * plan.out_channels + c * kChunk;
      float* to = ResultsOf(plan, m, panel, tiles) +
                  (t - tiles.begin) * VectorsOf(plan, panel) * plan.lanes +
                  c % plan.panel_chunks() * kChunk;
      if (c >= plan.out_chunks()) {
        StorePoints<kChunk>({}, plan.m_stride, to);
        continue;
      }
      TransformGradient<kChunk>(plan, dy + output.Offset(tile.image, channel),
                                tile, plan.m_stride, to);
    }
  }
}

// Adds up the sums of all ranges of tiles and stores the weight's gradient of a
// group for these pairs of chunks.
template <int kChunk>
FUSOR_INLINE void StoreGradients(const WideWinogradPlan& plan,
                                 const float* sums, IndexRange pairs,
                                 float* weight) {
  for (int64_t pair = pairs.begin; pair < pairs.end; ++pair) {
    const int64_t in = pair / plan.out_chunks();
    const int64_t out = pair % plan.out_chunks();
    for (int64_t i = 0; i < kChunk; ++i) {
      Points<kChunk> u = {};
      const float* from =
          sums + (in * kChunk + i) * plan.sum_row() + out * kChunk;
      for (int64_t range = 0; range < plan.tile_parts; ++range) {
        for (int p = 0; p < kPoints; ++p) {
          FloatsOf<kChunk> x;
          Load(from + (range * kPoints + p) * plan.sum_stride(), x);
          u[p] += x;
        }
      }
      for (int row = 0; row < kSide; ++row) FilterOfPoints(u + row * kSide, 1);
      for (int column = 0; column < 3; ++column) {
        FilterOfPoints(u + column, kSide);
      }
      for (int k = 0; k < kTaps; ++k) {
        StoreExactly(
            weight +
                ((out * plan.in_chunks() + in) * kTaps + k) * kChunk * kChunk +
                i * kChunk,
            u[k / 3 * kSide + k % 3]);
      }
    }
  }
}

// --- Stages ------------------------------------------------------------------

// Computes the results of these tiles and panels of a group. `v`: the part's
// own workspace.
template <int kLanes, int kChunk>
FUSOR_INLINE void Convolve(const WideWinogradPlan& plan, const Arguments& args,
                           int64_t group, IndexRange tiles, IndexRange panels,
                           float* v) {
  float* m = v + kPoints * plan.v_stride;
  float* own = m + kPoints * plan.m_stride;
  TransformInputs<kChunk>(plan, args.a, group, tiles, {0, plan.in_chunks()}, v);
  for (int64_t first = panels.begin; first < panels.end;
       first += plan.panels_together) {
    const int64_t together = std::min(plan.panels_together, panels.end - first);
    const float* weights = own;
    if (plan.has_own_weights()) {
      TransformWeights<kChunk>(plan, args.b + group * WeightsOf(plan),
                               {0, plan.in_chunks()}, {first, first + 1}, own);
    } else {
      weights = args.workspace + group * plan.group_weights() +
                first * plan.panel_weights();
    }
    for (int64_t p = 0; p < kPoints; ++p) {
      for (int64_t i = 0; i < together; ++i) {
        const int64_t vectors = VectorsOf(plan, first + i);
        Multiply<kLanes>({.a = v + p * plan.v_stride,
                          .row_stride = plan.v_row,
                          .step_stride = 1,
                          .b = weights + i * plan.panel_weights() +
                               p * WeightStride(plan, first + i),
                          .b_stride = vectors * kLanes,
                          .c = ResultsOf(plan, m, i, tiles) + p * plan.m_stride,
                          .c_stride = vectors * kLanes,
                          .rows = tiles.size(),
                          .steps = plan.in_channels},
                         vectors);
      }
    }
    for (int64_t i = 0; i < together; ++i) {
      TransformOutputs<kChunk>(plan, ResultsOf(plan, m, i, tiles), group, tiles,
                               first + i, args.bias, args.result);
    }
  }
}

// Adds the tiles' products to `sums`, or stores them.
template <int kLanes, int kChunk>
FUSOR_INLINE void Accumulate(const WideWinogradPlan& plan,
                             const Arguments& args, int64_t group,
                             IndexRange tiles, IndexRange chunks, bool adds,
                             float* v, float* sums) {
  float* m = v + kPoints * plan.v_stride;
  const int64_t channels = chunks.size() * kChunk;
  TransformInputs<kChunk>(plan, args.a, group, tiles, chunks, v);
  TransformGradients<kChunk>(plan, args.b, group, tiles, m);
  for (int64_t p = 0; p < kPoints; ++p) {
    float* c =
        sums + p * plan.sum_stride() + chunks.begin * kChunk * plan.sum_row();
    for (int64_t panel = 0; panel < plan.out_panels(); ++panel) {
      Multiply<kLanes>(
          {.a = v + p * plan.v_stride,
           .row_stride = 1,
           .step_stride = plan.v_row,
           .b = ResultsOf(plan, m, panel, tiles) + p * plan.m_stride,
           .b_stride = VectorsOf(plan, panel) * kLanes,
           .c = c + panel * plan.panel_channels(),
           .c_stride = plan.sum_row(),
           .rows = channels,
           .steps = tiles.size(),
           .adds = adds},
          VectorsOf(plan, panel));
    }
  }
}

// Transforms a part's share of the weights of all groups.
template <int kChunk>
FUSOR_INLINE void RunWeights(const WideWinogradPlan& plan,
                             const Arguments& args, int64_t part) {
  const IndexRange share =
      Share(plan.groups * plan.in_chunks(), part, plan.parts());
  for (int64_t i = share.begin; i < share.end; ++i) {
    const int64_t group = i / plan.in_chunks(), in = i % plan.in_chunks();
    TransformWeights<kChunk>(plan, args.b + group * WeightsOf(plan),
                             {in, in + 1}, {0, plan.out_panels()},
                             args.workspace + group * plan.group_weights());
  }
}

// Runs a part's share of the tasks, with its panels.
template <int kLanes, int kChunk>
FUSOR_INLINE void RunTasks(const WideWinogradPlan& plan, const Arguments& args,
                           int64_t part) {
  const IndexRange tasks = Share(plan.groups * plan.tile_ranges,
                                 part / plan.channel_parts, plan.tile_parts);
  const IndexRange panels =
      Share(plan.out_panels(), part % plan.channel_parts, plan.channel_parts);
  for (int64_t task = tasks.begin; task < tasks.end; ++task) {
    Convolve<kLanes, kChunk>(
        plan, args, task / plan.tile_ranges,
        Share(plan.tiles(), task % plan.tile_ranges, plan.tile_ranges), panels,
        args.workspace + plan.shared() + part * plan.part());
  }
}

// Adds up the products of a part's share of a group's tiles and chunks.
template <int kLanes, int kChunk>
FUSOR_INLINE void RunSums(const WideWinogradPlan& plan, const Arguments& args,
                          int64_t group, int64_t part) {
  const int64_t tile_part = part / plan.channel_parts;
  const IndexRange all = Share(plan.tiles(), tile_part, plan.tile_parts);
  const IndexRange chunks =
      Share(plan.in_chunks(), part % plan.channel_parts, plan.channel_parts);
  // Runs at least once, so that a part without tiles stores zero sums.
  int64_t t = all.begin;
  do {
    Accumulate<kLanes, kChunk>(
        plan, args, group, {t, std::min(t + plan.block, all.end)}, chunks,
        t > all.begin, args.workspace + plan.shared() + part * plan.part(),
        args.workspace + tile_part * kPoints * plan.sum_stride());
    t += plan.block;
  } while (t < all.end);
}

enum class Stage { kWeights, kTasks, kSums, kGradients };

// `group`: of the last two stages.
template <int kLanes, int kChunk>
FUSOR_INLINE void RunStage(const WideWinogradPlan& plan, const Arguments& args,
                           Stage stage, int64_t group, int64_t part) {
  switch (stage) {
    case Stage::kWeights:
      RunWeights<kChunk>(plan, args, part);
      break;
    case Stage::kTasks:
      RunTasks<kLanes, kChunk>(plan, args, part);
      break;
    case Stage::kSums:
      RunSums<kLanes, kChunk>(plan, args, group, part);
      break;
    case Stage::kGradients:
      StoreGradients<kChunk>(
          plan, args.workspace,
          Share(plan.in_chunks() * plan.out_chunks(), part, plan.parts()),
          args.result + group * WeightsOf(plan));
      break;
  }
}

FUSOR_AVX512 void RunStageAvx512(const WideWinogradPlan& plan,
                                 const Arguments& args, Stage stage,
                                 int64_t group, int64_t part) {
  if (plan.chunk == 16) {
    RunStage<16, 16>(plan, args, stage, group, part);
  } else {
    RunStage<16, 8>(plan, args, stage, group, part);
  }
}
__attribute__((target("avx2,fma"))) void RunStageAvx2(
    const WideWinogradPlan& plan, const Arguments& args, Stage stage,
    int64_t group, int64_t part) {
  RunStage<8, 8>(plan, args, stage, group, part);
}

// args: operands, result, workspace.
class WideWinogradExecutable final : public CpuExecutable {
 public:
  WideWinogradExecutable(const LibraryCall& call, const WideWinogradPlan& plan)
      : CpuExecutable(call),
        plan_(plan),
        run_stage_(plan.isa() == VectorIsa::kAvx512 ? RunStageAvx512
                                                    : RunStageAvx2) {}

  void Run(void* const* args) const override {
    void* const* rest = args + (plan_.bias ? 3 : 2);
    const Arguments arguments{
        .a = static_cast<const float*>(args[0]),
        .b = static_cast<const float*>(args[1]),
        .bias = plan_.bias ? static_cast<const float*>(args[2]) : nullptr,
        .result = static_cast<float*>(rest[0]),
        .workspace = static_cast<float*>(rest[1])};
    const auto run = [&](Stage stage, int64_t group) {
      ForParts(plan_.parts(), [&](int64_t part) {
        run_stage_(plan_, arguments, stage, group, part);
      });
    };
    if (plan_.kind == ConvKind::kGradWeight) {
      for (int64_t group = 0; group < plan_.groups; ++group) {
        run(Stage::kSums, group);
        run(Stage::kGradients, group);
      }
      return;
    }
    if (!plan_.has_own_weights()) run(Stage::kWeights, 0);
    run(Stage::kTasks, 0);
  }

 private:
  const WideWinogradPlan plan_;
  void (*const run_stage_)(const WideWinogradPlan& plan, const Arguments& args,
                           Stage stage, int64_t group, int64_t part);
};

}  // namespace

std::unique_ptr<CpuExecutable> MakeExecutable(const LibraryCall& call,
                                              const WideWinogradPlan& plan) {
  return std::make_unique<WideWinogradExecutable>(call, plan);
}

}  // namespace fusor::cpu
