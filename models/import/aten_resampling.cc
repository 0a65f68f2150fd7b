// Resizing of images and sampling at computed positions.

#include <algorithm>
#include <cmath>

#include "models/import/aten_ops.h"
#include "models/resampling.h"

namespace fusor::models {

using ir::Value;

namespace {

using Ints = std::vector<int64_t>;
using Values = std::vector<Value*>;

enum class Resizing {
  kNearest,
  kNearestExact,
  kLinear,
  kCubic,
  kLinearAntialias,
  kCubicAntialias,
};

// One dimension. `scale`: the factor that was given, or 0.
struct ResizedDim {
  int64_t in, out;
  double scale;
  bool align;
};

// Returns the distance in the input of two elements of the result.
double Step(const ResizedDim& dim) {
  const auto in = static_cast<double>(dim.in);
  const auto out = static_cast<double>(dim.out);
  if (dim.align) return dim.out > 1 ? (in - 1) / (out - 1) : 0;
  return dim.scale > 0 ? 1 / dim.scale : in / out;
}

// Returns what element i of the result reads (ATen, UpSample.h).
template <Resizing mode>
Taps TapsOf(int64_t i, const ResizedDim& dim) {
  const double step = Step(dim);
  if constexpr (mode == Resizing::kNearest || mode == Resizing::kNearestExact) {
    const float at =
        static_cast<float>(i) + (mode == Resizing::kNearestExact ? 0.5F : 0.0F);
    return {{static_cast<int64_t>(std::floor(at * static_cast<float>(step)))},
            {1}};
  }
  // With antialiasing, aligned corners only change the step.
  constexpr bool antialias =
      mode == Resizing::kLinearAntialias || mode == Resizing::kCubicAntialias;
  const auto x = static_cast<double>(i);
  const double at = dim.align && !antialias ? x * step : (x + 0.5) * step - 0.5;
  if constexpr (mode == Resizing::kLinear) {
    return TapsAt({}, std::max(0.0, at), dim.in);
  }
  if constexpr (mode == Resizing::kCubic) {
    return TapsAt({.cubic = true}, at, dim.in);
  }
  return TapsAt({.cubic = mode == Resizing::kCubicAntialias,
                 .a = -0.5,
                 .antialias = 1 / std::max(step, 1.0),
                 .exclude_outside = true},
                at, dim.in);
}

// Resizes the last `count` dimensions, one after the other.
template <Resizing mode, size_t count>
Values Resize(AtenCall& call) {
  Value* x = call.Tensor(call.Has("input") ? "input" : "self");
  constexpr bool nearest =
      mode == Resizing::kNearest || mode == Resizing::kNearestExact;
  if (RankOf(x) != static_cast<int64_t>(count) + 2) {
    call.Throw(fmt::format("expected rank {}, got {}", count + 2,
                           ToString(x->type())));
  }
  const bool align = !nearest && call.Bool("align_corners", false);
  std::vector<double> scales(count, 0);
  Ints size = call.Ints("output_size");
  if (call.Has("scale_factors")) {
    scales = call.Numbers("scale_factors");
    size.resize(count);
    for (size_t i = 0; i < count && scales.size() == count; ++i) {
      const double extent =
          std::floor(static_cast<double>(ShapeOf(x)[2 + i]) * scales[i]);
      size[i] = extent >= 1 && extent < 1e6 ? static_cast<int64_t>(extent) : 0;
    }
  }
  if (size.size() != count || scales.size() != count ||
      *std::min_element(size.begin(), size.end()) < 1 ||
      *std::max_element(size.begin(), size.end()) > (1 << 20)) {
    call.Throw(fmt::format("expected {} extents or scale factors", count));
  }
  // Each tap is an op of its own.
  constexpr int64_t kMostRatio = 256;
  for (size_t i = 0; i < count; ++i) {
    if (!nearest && ShapeOf(x)[2 + i] / size[i] > kMostRatio) {
      call.Throw(
          fmt::format("{} elements to {}: expected at most {} times fewer",
                      ShapeOf(x)[2 + i], size[i], kMostRatio));
    }
    const ResizedDim dim{ShapeOf(x)[2 + i], size[i], scales[i], align};
    std::vector<Taps> elements;
    for (int64_t o = 0; o < dim.out; ++o) {
      elements.push_back(TapsOf<mode>(o, dim));
    }
    x = Resampled(call.b(), x, static_cast<int64_t>(2 + i), elements);
  }
  return {x};
}

Values GridSampler(AtenCall& call) {
  Value* x = call.Tensor("input");
  Value* grid = call.Tensor("grid");
  // Bilinear, nearest, bicubic; zeros, border, reflection.
  constexpr int64_t kTaps[] = {2, 1, 4};
  const int64_t mode = call.Int("interpolation_mode");
  const int64_t padding = call.Int("padding_mode");
  if (mode < 0 || mode > 2 || padding < 0 || padding > 2 ||
      !IsGridOf(grid, x)) {
    call.Throw(fmt::format("{} at {}, mode {}, padding mode {}",
                           ToString(x->type()), ToString(grid->type()), mode,
                           padding));
  }
  return {SampledAtGrid(call.b(), x, grid,
                        {.taps = kTaps[mode],
                         .padding = static_cast<GridSampling::Padding>(padding),
                         .align_corners = call.Bool("align_corners", false)})};
}

Values AffineGridGenerator(AtenCall& call) {
  Value* theta = call.Tensor("theta");
  const Ints size = call.Ints("size");
  if (!IsAffineMap(theta, size)) {
    call.Throw(fmt::format("{} for [{}]", ToString(theta->type()),
                           fmt::join(size, ",")));
  }
  return {AffineGrid(call.b(), theta, size, call.Bool("align_corners", false))};
}

constexpr AtenOp kResamplingOps[] = {
    {"_upsample_bicubic2d_aa.vec", Resize<Resizing::kCubicAntialias, 2>},
    {"_upsample_bilinear2d_aa.vec", Resize<Resizing::kLinearAntialias, 2>},
    {"_upsample_nearest_exact1d.vec", Resize<Resizing::kNearestExact, 1>},
    {"_upsample_nearest_exact2d.vec", Resize<Resizing::kNearestExact, 2>},
    {"_upsample_nearest_exact3d.vec", Resize<Resizing::kNearestExact, 3>},
    {"affine_grid_generator.default", AffineGridGenerator},
    {"grid_sampler.default", GridSampler},
    {"grid_sampler_2d.default", GridSampler},
    {"grid_sampler_3d.default", GridSampler},
    {"upsample_bicubic2d.vec", Resize<Resizing::kCubic, 2>},
    {"upsample_bilinear2d.vec", Resize<Resizing::kLinear, 2>},
    {"upsample_linear1d.vec", Resize<Resizing::kLinear, 1>},
    {"upsample_nearest1d.vec", Resize<Resizing::kNearest, 1>},
    {"upsample_nearest2d.vec", Resize<Resizing::kNearest, 2>},
    {"upsample_nearest3d.vec", Resize<Resizing::kNearest, 3>},
    {"upsample_trilinear3d.vec", Resize<Resizing::kLinear, 3>},
};

}  // namespace

std::span<const AtenOp> AtenResamplingOps() { return kResamplingOps; }

}  // namespace fusor::models
