// Resizing and sampling of images.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "models/onnx/onnx_ops.h"
#include "models/resampling.h"

namespace fusor::models {

using ir::Builder;
using ir::DType;
using ir::Shape;
using ir::Value;

namespace {

using Ints = std::vector<int64_t>;

// How one axis is resized.
struct Axis {
  int64_t in, out;
  double scale;
  double roi_start = 0, roi_end = 1;
};

struct Resampling {
  std::string coordinates, mode, nearest;
  bool antialias;
  ResizeFilter filter;  // of modes other than nearest
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

Taps TapsOf(const Resampling& r, const Axis& axis, double at) {
  if (r.mode == "nearest") return {{Nearest(r.nearest, at)}, {1}};
  ResizeFilter filter = r.filter;
  if (r.antialias) filter.antialias = axis.scale;
  return TapsAt(filter, at, axis.in);
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
  Resampling r{
      call.Choice("coordinate_transformation_mode",
                  {"half_pixel", "half_pixel_symmetric", "pytorch_half_pixel",
                   "align_corners", "asymmetric", "tf_crop_and_resize"}),
      call.Choice("mode", {"nearest", "linear", "cubic"}),
      call.Choice("nearest_mode",
                  {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"}),
      call.Flag("antialias", false),
      {.a = call.Float("cubic_coeff_a", -0.75),
       .exclude_outside = call.Flag("exclude_outside", false)}};
  r.filter.cubic = r.mode == "cubic";
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
      elements.push_back(TapsOf(r, axis, at));
      const bool within = at >= 0 && at <= static_cast<double>(axis.in - 1);
      inside.push_back(!crops || within ? 1 : 0);
    }
    x = Resampled(b, x, named[i], elements);
    if (std::find(inside.begin(), inside.end(), 0) != inside.end()) {
      Value* mask = b.Constant(DType::kBool, {axis.out}, std::move(inside));
      x = b.Select(b.Broadcast(mask, ShapeOf(x), {named[i]}), x,
                   b.ScalarLike(x, outside));
    }
  }
  return {b.Cast(x, dtype)};
}

// x [N,C,D..] at grid [N,out..,r] -> [N,C,out..].
OnnxResults GridSample(OnnxCall& call) {
  using Padding = GridSampling::Padding;
  const std::string mode = call.Choice(
      "mode", {"linear", "bilinear", "nearest", "cubic", "bicubic"});
  const std::string padding =
      call.Choice("padding_mode", {"zeros", "border", "reflection"});
  Value* x = call.Tensor(0);
  Value* grid = call.Tensor(1);
  if (!IsGridOf(grid, x)) {
    call.Throw(
        fmt::format("{} at {}", ToString(x->type()), ToString(grid->type())));
  }
  return {
      SampledAtGrid(call.b(), x, grid,
                    {.taps = mode == "nearest"          ? 1
                             : mode.ends_with("linear") ? 2
                                                        : 4,
                     .padding = padding == "zeros"    ? Padding::kZeros
                                : padding == "border" ? Padding::kBorder
                                                      : Padding::kReflection,
                     .align_corners = call.Flag("align_corners", false)})};
}

OnnxResults AffineGridOp(OnnxCall& call) {
  Value* theta = call.Tensor(0);
  const Ints size = call.KnownInts(1);
  if (!IsAffineMap(theta, size)) {
    call.Throw(fmt::format("{} for [{}]", ToString(theta->type()),
                           fmt::join(size, ",")));
  }
  return {AffineGrid(call.b(), theta, size, call.Flag("align_corners", false))};
}

constexpr OnnxOp kResizeOps[] = {
    {"AffineGrid", AffineGridOp},
    {"GridSample", GridSample},
    {"Resize", Resize},
};

}  // namespace

std::span<const OnnxOp> OnnxResizeOps() { return kResizeOps; }

}  // namespace fusor::models
