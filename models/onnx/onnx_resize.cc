// Resizing and sampling of images.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "models/functions.h"
#include "models/onnx/onnx_ops.h"

namespace fusor::models {

using ir::Builder;
using ir::DType;
using ir::Shape;
using ir::Value;

namespace {

using Ints = std::vector<int64_t>;

// The elements that one element of a result reads, and their weights.
struct Taps {
  Ints positions;  // may be outside
  std::vector<double> weights;
};

// How one axis is resized.
struct Axis {
  int64_t in, out;
  double scale;
  double roi_start = 0, roi_end = 1;
};

struct Resampling {
  std::string coordinates, mode, nearest;
  double cubic;
  bool antialias, exclude_outside;
};

// Returns the position in the input of an element of the result.
double Coordinate(const Resampling& r, const Axis& axis, int64_t i) {
  const auto x = static_cast<double>(i);
  const double span = static_cast<double>(axis.in - 1);
  const double width = axis.scale * static_cast<double>(axis.in);
  if (r.coordinates == "align_corners") {
    return width == 1 ? 0 : x * span / (width - 1);
  }
  if (r.coordinates == "asymmetric") return x / axis.scale;
  if (r.coordinates == "tf_crop_and_resize") {
    const double part = axis.roi_end - axis.roi_start;
    const double within =
        width == 1 ? part * span / 2 : x * part * span / (width - 1);
    return within + axis.roi_start * span;
  }
  if (r.coordinates == "pytorch_half_pixel" && width == 1) return -0.5;
  const double centre = (x + 0.5) / axis.scale - 0.5;
  if (r.coordinates != "half_pixel_symmetric") return centre;
  const double adjustment = static_cast<double>(axis.out) / width;
  return static_cast<double>(axis.in) / 2 * (1 - adjustment) + centre;
}

int64_t Nearest(const std::string& mode, double at) {
  const double low = std::floor(at);
  const double rest = at - low;
  if (rest == 0 || mode == "floor") return static_cast<int64_t>(low);
  const bool up = mode == "ceil" || rest > 0.5 ||
                  (rest == 0.5 && mode == "round_prefer_ceil");
  return static_cast<int64_t>(low) + (up ? 1 : 0);
}

// Returns the weight of an element at this distance (Keys 1981; linear: a
// triangle).
double Kernel(const Resampling& r, double distance) {
  const double x = std::abs(distance);
  if (r.mode == "linear") return std::max(0.0, 1 - x);
  const double a = r.cubic;
  if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
  return 0;
}

Taps TapsAt(const Resampling& r, const Axis& axis, double at) {
  if (r.mode == "nearest") return {{Nearest(r.nearest, at)}, {1}};
  Taps taps;
  // Antialiasing stretches the kernel to the input range of one result element.
  const double scale = r.antialias ? std::min(axis.scale, 1.0) : 1;
  const double radius = (r.mode == "linear" ? 1 : 2) / scale;
  double sum = 0;
  const auto last = static_cast<int64_t>(std::floor(at + radius));
  for (auto i = static_cast<int64_t>(std::ceil(at - radius)); i <= last; ++i) {
    const double weight = Kernel(r, scale * (static_cast<double>(i) - at));
    const bool outside = i < 0 || i >= axis.in;
    if (weight == 0 || (outside && r.exclude_outside)) continue;
    taps.positions.push_back(i);
    taps.weights.push_back(weight);
    sum += weight;
  }
  if (r.antialias || r.exclude_outside) {
    for (double& weight : taps.weights) weight /= sum == 0 ? 1 : sum;
  }
  return taps;
}

// Replaces an axis by weighted sums of its elements. Outside the axis, uses its
// first or last element.
Value* Resampled(OnnxCall& call, Value* x, int64_t dim, const Axis& axis,
                 const std::vector<Taps>& elements) {
  Builder& b = call.b();
  size_t most = 1;
  for (const Taps& taps : elements) most = std::max(most, taps.weights.size());
  Value* sum = nullptr;
  for (size_t t = 0; t < most; ++t) {
    Ints positions;
    std::vector<double> weights;
    for (const Taps& taps : elements) {
      const bool there = t < taps.weights.size();
      positions.push_back(
          there ? std::clamp<int64_t>(taps.positions[t], 0, axis.in - 1) : 0);
      weights.push_back(there ? taps.weights[t] : 0);
    }
    Value* part = TakeAt(call, x, dim, positions);
    const bool plain = std::all_of(weights.begin(), weights.end(),
                                   [](double weight) { return weight == 1; });
    if (!plain) {
      const auto count = static_cast<int64_t>(weights.size());
      part = b.Times(part, b.BroadcastAlong(b.Constant(x->type().dtype, {count},
                                                       std::move(weights)),
                                            part->type(), dim));
    }
    sum = sum == nullptr ? part : b.Plus(sum, part);
  }
  return sum;
}

// Reads sizes or scales, one per named axis.
std::vector<Axis> AxesToResize(OnnxCall& call, const Value* x,
                               const Ints& named, bool crops) {
  const std::string policy = call.Choice(
      "keep_aspect_ratio_policy", {"stretch", "not_larger", "not_smaller"});
  const bool sized = call.Has(3) && !call.IsEmpty(3);
  const std::vector<double> values = call.KnownNumbers(sized ? 3 : 2);
  const std::vector<double> roi =
      crops ? call.KnownNumbers(1) : std::vector<double>{};
  if (values.size() != named.size() ||
      (crops && roi.size() != 2 * named.size())) {
    call.Throw("roi, scales or sizes: expected one per axis");
  }
  std::vector<Axis> axes;
  double least = 1e30, greatest = 0;
  for (size_t i = 0; i < named.size(); ++i) {
    Axis axis{ShapeOf(x)[static_cast<size_t>(named[i])], 0, values[i]};
    const auto extent = static_cast<double>(axis.in);
    if (sized) axis.scale = values[i] / extent;
    const double out = sized ? values[i] : std::floor(extent * axis.scale);
    constexpr double kMost = 1 << 20;
    if (!(out >= 1 && out <= kMost && extent <= kMost)) {
      call.Throw(fmt::format("an extent of {}: expected 1 to {}", out, kMost));
    }
    axis.out = static_cast<int64_t>(out);
    least = std::min(least, axis.scale);
    greatest = std::max(greatest, axis.scale);
    if (crops) {
      axis.roi_start = roi[i];
      axis.roi_end = roi[named.size() + i];
    }
    axes.push_back(axis);
  }
  if (!sized || policy == "stretch") return axes;
  for (Axis& axis : axes) {
    axis.scale = policy == "not_larger" ? least : greatest;
    axis.out = std::max<int64_t>(
        1,
        static_cast<int64_t>(axis.scale * static_cast<double>(axis.in) + 0.5));
  }
  return axes;
}

OnnxResults Resize(OnnxCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor(0);
  const DType dtype = x->type().dtype;
  const Resampling r{
      call.Choice("coordinate_transformation_mode",
                  {"half_pixel", "half_pixel_symmetric", "pytorch_half_pixel",
                   "align_corners", "asymmetric", "tf_crop_and_resize"}),
      call.Choice("mode", {"nearest", "linear", "cubic"}),
      call.Choice("nearest_mode",
                  {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"}),
      call.Float("cubic_coeff_a", -0.75),
      call.Flag("antialias", false),
      call.Flag("exclude_outside", false)};
  const double outside = call.Float("extrapolation_value", 0);
  const bool crops = r.coordinates == "tf_crop_and_resize";
  Ints named = call.Ints("axes", AllAxes(RankOf(x)));
  for (int64_t& axis : named) axis = AxisOf(call, axis, RankOf(x));
  const std::vector<Axis> axes = AxesToResize(call, x, named, crops);
  if (!ir::IsFloat(dtype) && r.mode != "nearest") x = b.Cast(x, DType::kF32);
  for (size_t i = 0; i < axes.size(); ++i) {
    const Axis& axis = axes[i];
    if (axis.in == axis.out && axis.scale == 1 && axis.roi_start == 0 &&
        axis.roi_end == 1) {
      continue;
    }
    std::vector<Taps> elements;
    std::vector<double> inside;
    for (int64_t o = 0; o < axis.out; ++o) {
      const double at = Coordinate(r, axis, o);
      elements.push_back(TapsAt(r, axis, at));
      const bool within = at >= 0 && at <= static_cast<double>(axis.in - 1);
      inside.push_back(!crops || within ? 1 : 0);
    }
    x = Resampled(call, x, named[i], axis, elements);
    if (std::find(inside.begin(), inside.end(), 0) != inside.end()) {
      Value* mask = b.Constant(DType::kBool, {axis.out}, std::move(inside));
      x = b.Select(b.Broadcast(mask, ShapeOf(x), {named[i]}), x,
                   b.ScalarLike(x, outside));
    }
  }
  return {b.Cast(x, dtype)};
}

// --- Sampling at computed positions ------------------------------------------

struct Sampling {
  bool align;
  std::string padding;
};

// Reflects positions at the borders of an extent until they are inside.
Value* Reflected(Builder& b, Value* at, int64_t extent, bool align) {
  const double low = align ? 0 : -0.5;
  const double range = static_cast<double>(align ? extent - 1 : extent);
  if (range == 0) return b.ScalarLike(at, 0);
  Value* rest = b.Remainder(b.Minus(at, low), 2 * range);
  Value* mirrored = b.Minus(b.ScalarLike(rest, 2 * range), rest);
  return b.Plus(b.Minimum(rest, mirrored), low);
}

// Maps positions outside the input to the positions that the padding mode
// reads.
Value* Moved(Builder& b, Value* at, int64_t extent, const Sampling& s) {
  if (s.padding == "border") {
    return b.Clamp(at, 0, static_cast<double>(extent - 1));
  }
  return s.padding == "reflection" ? Reflected(b, at, extent, s.align) : at;
}

// The elements that positions in one dimension read.
struct SampledDim {
  Value* first;                 // index, as a float
  std::vector<Value*> weights;  // of it and the next ones; null: 1
};

// `at` is from -1 to 1.
SampledDim Sampled(Builder& b, Value* at, int64_t extent, int64_t taps,
                   const Sampling& s) {
  const auto span = static_cast<double>(extent);
  at = b.Plus(at, 1.0);
  at = s.align ? b.Times(at, (span - 1) / 2)
               : b.Times(b.Minus(b.Times(at, span), 1.0), 0.5);
  if (taps == 1) return {Moved(b, HalfToEven(b, at), extent, s), {nullptr}};
  at = Moved(b, at, extent, s);
  Value* low = b.Floor(at);
  Value* rest = b.Minus(at, low);
  Value* left = b.Minus(b.ScalarLike(rest, 1), rest);
  if (taps == 2) return {low, {left, rest}};
  // Keys' kernel, as in Kernel.
  constexpr double a = -0.75;
  const auto near = [&](Value* t) {
    return b.Plus(b.Times(b.Times(t, t), b.Minus(b.Times(t, a + 2), a + 3)),
                  1.0);
  };
  const auto far = [&](Value* t) {
    t = b.Plus(t, 1.0);
    Value* sum = b.Plus(b.Times(b.Minus(b.Times(t, a), 5 * a), t), 8 * a);
    return b.Minus(b.Times(sum, t), 4 * a);
  };
  return {b.Minus(low, 1.0), {far(rest), near(rest), near(left), far(left)}};
}

// x [N,C,D..] at grid [N,out..,r], whose positions are from -1 to 1, last
// dimension first -> [N,C,out..].
OnnxResults GridSample(OnnxCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor(0);
  Value* grid = call.Tensor(1);
  const std::string mode = call.Choice(
      "mode", {"linear", "bilinear", "nearest", "cubic", "bicubic"});
  const Sampling s{
      call.Flag("align_corners", false),
      call.Choice("padding_mode", {"zeros", "border", "reflection"})};
  const int64_t rank = RankOf(x) - 2;
  if (rank < 1 || rank > 3 || RankOf(grid) != RankOf(x) ||
      ShapeOf(grid).back() != rank || ShapeOf(grid)[0] != ShapeOf(x)[0]) {
    call.Throw(
        fmt::format("{} at {}", ToString(x->type()), ToString(grid->type())));
  }
  const DType dtype = x->type().dtype;
  const DType wide = dtype == DType::kF64 ? dtype : DType::kF32;
  const int64_t taps = mode == "nearest" ? 1 : mode.ends_with("linear") ? 2 : 4;
  Shape shape(ShapeOf(grid).begin(), ShapeOf(grid).end() - 1);
  shape.insert(shape.begin() + 1, 1);
  std::vector<SampledDim> sampled;  // each [N,1,out..]
  int64_t combinations = 1;
  for (int64_t d = 0; d < rank; ++d) {
    Value* at = Strided(call, grid, RankOf(grid) - 1, rank - 1 - d, 1, 1);
    at = b.Cast(b.Reshape(at, shape), wide);
    sampled.push_back(
        Sampled(b, at, ShapeOf(x)[static_cast<size_t>(2 + d)], taps, s));
    combinations *= taps;
  }
  shape[1] = ShapeOf(x)[1];
  Ints dims(static_cast<size_t>(rank + 2), -1);
  dims[0] = 0;
  dims[1] = 1;
  Value* sum = nullptr;
  for (int64_t c = 0; c < combinations; ++c) {
    std::vector<Value*> indices;
    Value* weight = nullptr;
    Value* inside = nullptr;
    int64_t rest = c;
    for (size_t d = 0; d < sampled.size(); ++d, rest /= taps) {
      const int64_t extent = ShapeOf(x)[2 + d];
      const auto last = static_cast<double>(extent - 1);
      const int64_t tap = rest % taps;
      Value* at = b.Plus(sampled[d].first, static_cast<double>(tap));
      if (s.padding == "zeros") {
        Value* within =
            b.And(b.Compare("ge", at, 0.0), b.Compare("le", at, last));
        inside = inside == nullptr ? within : b.And(inside, within);
      } else {
        at = Moved(b, at, extent, s);
      }
      indices.push_back(
          b.BroadcastTo(b.Cast(b.Clamp(at, 0, last), DType::kI64), shape));
      Value* own = sampled[d].weights[static_cast<size_t>(tap)];
      if (own == nullptr) continue;
      weight = weight == nullptr ? own : b.Times(weight, own);
    }
    Value* part = b.Cast(b.Gather(x, indices, dims), wide);
    if (weight != nullptr) part = b.Times(part, weight);
    if (inside != nullptr) part = b.Select(inside, part, b.ScalarLike(part, 0));
    sum = sum == nullptr ? part : b.Plus(sum, part);
  }
  return {b.Cast(sum, dtype)};
}

// theta [N,r,r+1] at each position of an image of `size` -> [N,out..,r].
OnnxResults AffineGrid(OnnxCall& call) {
  Builder& b = call.b();
  Value* theta = call.Tensor(0);
  const Ints size = call.KnownInts(1);
  const bool align = call.Flag("align_corners", false);
  const auto rank = static_cast<int64_t>(size.size()) - 2;
  const bool fits = std::all_of(size.begin(), size.end(), [](int64_t extent) {
    return extent >= 1 && extent <= ir::kMaxElements;
  });
  if (rank < 2 || rank > 3 || !fits ||
      ShapeOf(theta) != Shape{size[0], rank, rank + 1}) {
    call.Throw(fmt::format("{} for [{}]", ToString(theta->type()),
                           fmt::join(size, ",")));
  }
  const Shape places(size.begin() + 2, size.end());
  const int64_t count = ir::NumElements(places);
  std::vector<Value*> columns;
  for (int64_t d = rank - 1; d >= 0; --d) {
    const auto extent = static_cast<double>(places[static_cast<size_t>(d)]);
    Value* at = b.Iota(theta->type().dtype, places, d);
    const double step =
        align ? (extent > 1 ? 2 / (extent - 1) : 0) : 2 / extent;
    at = b.Plus(b.Times(at, step), align ? -1.0 : 1 / extent - 1);
    columns.push_back(b.Reshape(at, {count, 1}));
  }
  columns.push_back(b.Constant(theta->type().dtype, {count, 1}, {1}));
  Value* y =
      b.Matmul(b.BroadcastTo(b.Concat(columns, 1), {size[0], count, rank + 1}),
               theta, false, /*transpose_b=*/true);
  Shape shape{size[0]};
  shape.insert(shape.end(), places.begin(), places.end());
  shape.push_back(rank);
  return {b.Reshape(y, shape)};
}

constexpr OnnxOp kResizeOps[] = {
    {"AffineGrid", AffineGrid},
    {"GridSample", GridSample},
    {"Resize", Resize},
};

}  // namespace

std::span<const OnnxOp> OnnxResizeOps() { return kResizeOps; }

}  // namespace fusor::models
