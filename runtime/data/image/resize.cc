#include "runtime/data/image/resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ir/support/error.h"

namespace fusor::runtime {
namespace {

constexpr int kPrecisionBits = 22;
constexpr int32_t kHalf = 1 << (kPrecisionBits - 1);

// The loops below are inlined into each calling function and compiled for its
// instruction set. All variants compute the same integers.
#define FUSOR_LOOP inline __attribute__((always_inline))

using Int4 = int32_t __attribute__((vector_size(16)));

FUSOR_LOOP void Widen(const uint8_t* in, int count, int32_t* __restrict out) {
  for (int i = 0; i < count; ++i) out[i] = in[i];
}

// Filters one row horizontally; `in` and `out` have 3 values per pixel. Uses 4
// lanes, so it reads and writes one value past the last pixel.
FUSOR_LOOP void SumColumns(const int32_t* in, const int* first,
                           const int32_t* weights, int taps, int width,
                           int32_t* __restrict out) {
  for (int x = 0; x < width; ++x) {
    const int32_t* from = in + 3 * first[x];
    Int4 sum = {kHalf, kHalf, kHalf, 0};
    for (int t = 0; t < taps; ++t) {
      Int4 pixel;
      std::memcpy(&pixel, from + 3 * t, sizeof(pixel));
      sum += pixel * weights[t];
    }
    std::memcpy(out + 3 * x, &sum, sizeof(sum));
    weights += taps;
  }
}

// Weights are non-negative and sum to one, so no clamping is needed.
FUSOR_LOOP void Narrow(const int32_t* in, int count, uint8_t* __restrict out) {
  for (int i = 0; i < count; ++i) {
    out[i] = static_cast<uint8_t>(in[i] >> kPrecisionBits);
  }
}

// Sums `taps` weighted rows of bytes, `stride` bytes apart.
FUSOR_LOOP void SumRows(const uint8_t* in, size_t stride,
                        const int32_t* weights, int taps, int count,
                        int32_t* __restrict out) {
  for (int i = 0; i < count; ++i) out[i] = kHalf;
  for (int t = 0; t < taps; ++t) {
    const uint8_t* row = in + stride * t;
    const int32_t weight = weights[t];
    for (int i = 0; i < count; ++i) out[i] += row[i] * weight;
  }
}

// Inputs and outputs of one resize.
struct Passes {
  const Image& source;
  const ResizeAxis& columns;
  const ResizeAxis& rows;
  int values;       // per row of the window
  int height;       // of the window
  int32_t* wide;    // one source row
  int32_t* sums;    // one row of the window
  uint8_t* narrow;  // [source rows, values]
  uint8_t* out;     // [height, values]
};

FUSOR_LOOP void RunPasses(const Passes& p) {
  const auto stride = static_cast<size_t>(p.values);
  for (int y = 0; y < p.source.height; ++y) {
    Widen(p.source.Row(y), p.source.width * 3, p.wide);
    SumColumns(p.wide, p.columns.first.data(), p.columns.weights.data(),
               p.columns.taps, p.values / 3, p.sums);
    Narrow(p.sums, p.values, p.narrow + stride * y);
  }
  for (int y = 0; y < p.height; ++y) {
    const int first = p.rows.first[y];
    // Taps of zero weight may be past the last row.
    const int taps = std::min(p.rows.taps, p.source.height - first);
    SumRows(p.narrow + stride * first, stride,
            &p.rows.weights[static_cast<size_t>(y) * p.rows.taps], taps,
            p.values, p.sums);
    Narrow(p.sums, p.values, p.out + stride * y);
  }
}

#undef FUSOR_LOOP

void RunPortable(const Passes& passes) { RunPasses(passes); }

#if defined(__x86_64__)
__attribute__((target("avx2"))) void RunAvx2(const Passes& passes) {
  RunPasses(passes);
}

const auto kRun = __builtin_cpu_supports("avx2") ? RunAvx2 : RunPortable;
#else
const auto kRun = RunPortable;
#endif

}  // namespace

ResizeSpec ResizeWhole(ImageSize source, ImageSize result) {
  return {.source = source,
          .right = static_cast<float>(source.width),
          .bottom = static_cast<float>(source.height),
          .result = result,
          .window = WholeImage(result)};
}

void Resizer::PlanAxis(int source, float low, float high, int result, int begin,
                       int count, ResizeAxis& axis) {
  const double scale = static_cast<double>(high - low) / result;
  const double support = std::max(scale, 1.0);
  const double inverse = 1.0 / support;
  const auto centre = [&](int i) { return low + (begin + i + 0.5) * scale; };
  const auto last = [&](int i) {
    return std::min(source, static_cast<int>(centre(i) + support + 0.5));
  };
  axis.first.resize(count);
  axis.begin = source;
  axis.end = 0;
  axis.taps = 0;
  for (int i = 0; i < count; ++i) {
    axis.first[i] = std::max(0, static_cast<int>(centre(i) - support + 0.5));
    axis.begin = std::min(axis.begin, axis.first[i]);
    axis.end = std::max(axis.end, last(i));
    axis.taps = std::max(axis.taps, last(i) - axis.first[i]);
  }
  axis.weights.assign(static_cast<size_t>(count) * axis.taps, 0);
  exact_.resize(axis.taps);
  for (int i = 0; i < count; ++i) {
    const int taps = last(i) - axis.first[i];
    double sum = 0;
    for (int t = 0; t < taps; ++t) {
      const double distance = (t + axis.first[i] - centre(i) + 0.5) * inverse;
      exact_[t] = std::max(0.0, 1.0 - std::abs(distance));
      sum += exact_[t];
    }
    int32_t* weights = &axis.weights[static_cast<size_t>(i) * axis.taps];
    for (int t = 0; t < taps; ++t) {
      weights[t] =
          static_cast<int32_t>(0.5 + exact_[t] / sum * (1 << kPrecisionBits));
    }
    axis.first[i] -= axis.begin;
  }
}

// Mirrors the result by reversing positions, not the taps of each.
void Resizer::FlipColumns() {
  std::reverse(columns_.first.begin(), columns_.first.end());
  const auto weights = columns_.weights.begin();
  const int taps = columns_.taps;
  for (int i = 0, j = width_ - 1; i < j; ++i, --j) {
    std::swap_ranges(weights + i * taps, weights + (i + 1) * taps,
                     weights + j * taps);
  }
}

void Resizer::Plan(const ResizeSpec& spec) {
  const Region& window = spec.window;
  FUSOR_ASSERT(
      window.x >= 0 && window.y >= 0 && window.width > 0 && window.height > 0 &&
          window.x + window.width <= spec.result.width &&
          window.y + window.height <= spec.result.height,
      "window {}x{} at ({}, {}) of a {}x{} result", window.width, window.height,
      window.x, window.y, spec.result.width, spec.result.height);
  FUSOR_ASSERT(spec.left >= 0 && spec.top >= 0 && spec.left < spec.right &&
                   spec.top < spec.bottom &&
                   spec.right <= static_cast<float>(spec.source.width) &&
                   spec.bottom <= static_cast<float>(spec.source.height),
               "box ({}, {}, {}, {}) of a {}x{} source", spec.left, spec.top,
               spec.right, spec.bottom, spec.source.width, spec.source.height);
  width_ = window.width;
  height_ = window.height;
  PlanAxis(spec.source.width, spec.left, spec.right, spec.result.width,
           window.x, width_, columns_);
  PlanAxis(spec.source.height, spec.top, spec.bottom, spec.result.height,
           window.y, height_, rows_);
  if (spec.flip) FlipColumns();
}

Region Resizer::source_region() const {
  return {columns_.begin, rows_.begin, columns_.end - columns_.begin,
          rows_.end - rows_.begin};
}

void Resizer::Run(const Image& source, uint8_t* out) {
  const Region region = source_region();
  FUSOR_ASSERT(source.width == region.width && source.height == region.height,
               "source {}x{}, planned for {}x{}", source.width, source.height,
               region.width, region.height);
  const int values = width_ * 3;
  // Every result pixel reads columns_.taps source pixels. Some, with weight
  // zero, may be past the end of the row.
  wide_.resize(size_t{3} * (region.width + columns_.taps) + 1);
  sums_.resize(static_cast<size_t>(values) + 1);
  narrow_.resize(static_cast<size_t>(values) * region.height);
  kRun({.source = source,
        .columns = columns_,
        .rows = rows_,
        .values = values,
        .height = height_,
        .wide = wide_.data(),
        .sums = sums_.data(),
        .narrow = narrow_.data(),
        .out = out});
}

}  // namespace fusor::runtime
