#include "models/resampling.h"

#include <algorithm>
#include <cmath>

#include "models/functions.h"

namespace fusor::models {

using ir::Builder;
using ir::DType;
using ir::Shape;
using ir::Value;

namespace {

using Ints = std::vector<int64_t>;
using Padding = GridSampling::Padding;

// Returns the weight of an element at this distance.
double Weight(const ResizeFilter& filter, double distance) {
  const double x = std::abs(distance);
  if (!filter.cubic) return std::max(0.0, 1 - x);
  const double a = filter.a;
  if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
  return 0;
}

}  // namespace

Taps TapsAt(const ResizeFilter& filter, double at, int64_t extent) {
  Taps taps;
  const double scale = std::min(filter.antialias, 1.0);
  const double radius = (filter.cubic ? 2 : 1) / scale;
  double sum = 0;
  const auto last = static_cast<int64_t>(std::floor(at + radius));
  for (auto i = static_cast<int64_t>(std::ceil(at - radius)); i <= last; ++i) {
    const double weight = Weight(filter, scale * (static_cast<double>(i) - at));
    const bool outside = i < 0 || i >= extent;
    if (weight == 0 || (outside && filter.exclude_outside)) continue;
    taps.positions.push_back(i);
    taps.weights.push_back(weight);
    sum += weight;
  }
  if (scale < 1 || filter.exclude_outside) {
    for (double& weight : taps.weights) weight /= sum == 0 ? 1 : sum;
  }
  return taps;
}

Value* Resampled(Builder& b, Value* x, int64_t dim,
                 const std::vector<Taps>& elements) {
  const int64_t last = x->type().shape[static_cast<size_t>(dim)] - 1;
  const auto count = static_cast<int64_t>(elements.size());
  size_t most = 1;
  for (const Taps& taps : elements) most = std::max(most, taps.weights.size());
  Value* sum = nullptr;
  for (size_t t = 0; t < most; ++t) {
    std::vector<double> positions, weights;
    for (const Taps& taps : elements) {
      const bool there = t < taps.weights.size();
      positions.push_back(static_cast<double>(
          there ? std::clamp<int64_t>(taps.positions[t], 0, last) : 0));
      weights.push_back(there ? taps.weights[t] : 0);
    }
    Value* part =
        b.Take(x, b.Constant(DType::kI32, {count}, std::move(positions)), dim);
    const bool plain = std::all_of(weights.begin(), weights.end(),
                                   [](double weight) { return weight == 1; });
    if (!plain) {
      part = b.Times(part, b.BroadcastAlong(b.Constant(x->type().dtype, {count},
                                                       std::move(weights)),
                                            part->type(), dim));
    }
    sum = sum == nullptr ? part : b.Plus(sum, part);
  }
  return sum;
}

// --- Sampling at computed positions ------------------------------------------

namespace {

// Reflects positions at the borders of an extent until they are inside.
Value* Reflected(Builder& b, Value* at, int64_t extent, bool align) {
  const double low = align ? 0 : -0.5;
  const double range = static_cast<double>(align ? extent - 1 : extent);
  if (range == 0) return b.ScalarLike(at, 0);
  Value* rest = b.Remainder(b.Minus(at, low), 2 * range);
  Value* mirrored = b.Minus(b.ScalarLike(rest, 2 * range), rest);
  return b.Plus(b.Minimum(rest, mirrored), low);
}

// Maps positions outside the input to the positions that the padding reads.
Value* Moved(Builder& b, Value* at, int64_t extent, const GridSampling& s) {
  if (s.padding == Padding::kZeros) return at;
  if (s.padding == Padding::kReflection) {
    at = Reflected(b, at, extent, s.align_corners);
  }
  return b.Clamp(at, 0, static_cast<double>(extent - 1));
}

// The elements that positions in one dimension read.
struct SampledDim {
  Value* first;                 // index, as a float
  std::vector<Value*> weights;  // of it and the next ones; null: 1
};

// `at` is from -1 to 1.
SampledDim Sampled(Builder& b, Value* at, int64_t extent,
                   const GridSampling& s) {
  const auto span = static_cast<double>(extent);
  at = b.Plus(at, 1.0);
  at = s.align_corners ? b.Times(at, (span - 1) / 2)
                       : b.Times(b.Minus(b.Times(at, span), 1.0), 0.5);
  if (s.taps == 1) return {Moved(b, HalfToEven(b, at), extent, s), {nullptr}};
  // Cubic filters move the elements that they read, and not the position, as in
  // PyTorch.
  if (s.taps == 2) at = Moved(b, at, extent, s);
  Value* low = b.Floor(at);
  Value* rest = b.Minus(at, low);
  Value* left = b.Minus(b.ScalarLike(rest, 1), rest);
  if (s.taps == 2) return {low, {left, rest}};
  // As in Weight.
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

}  // namespace

bool IsGridOf(const Value* grid, const Value* x) {
  const Shape& image = x->type().shape;
  const Shape& shape = grid->type().shape;
  const auto rank = static_cast<int64_t>(image.size()) - 2;
  return rank >= 1 && rank <= 3 && shape.size() == image.size() &&
         shape.back() == rank && shape[0] == image[0];
}

Value* SampledAtGrid(Builder& b, Value* x, Value* grid,
                     const GridSampling& sampling) {
  const Shape& image = x->type().shape;
  Shape shape = grid->type().shape;
  const auto rank = static_cast<int64_t>(image.size()) - 2;
  const DType dtype = x->type().dtype;
  const DType wide = dtype == DType::kF64 ? dtype : DType::kF32;
  const int64_t taps = sampling.taps;
  Ints start(shape.size(), 0), limit = shape;
  shape.pop_back();
  shape.insert(shape.begin() + 1, 1);
  std::vector<SampledDim> sampled;  // each [N,1,out..]
  int64_t combinations = 1;
  for (int64_t d = 0; d < rank; ++d) {
    start.back() = rank - 1 - d;
    limit.back() = rank - d;
    Value* at = b.Cast(b.Reshape(b.Slice(grid, start, limit), shape), wide);
    sampled.push_back(
        Sampled(b, at, image[static_cast<size_t>(2 + d)], sampling));
    combinations *= taps;
  }
  shape[1] = image[1];
  Ints dims(image.size(), -1);
  dims[0] = 0;
  dims[1] = 1;
  Value* sum = nullptr;
  for (int64_t c = 0; c < combinations; ++c) {
    std::vector<Value*> indices;
    Value* weight = nullptr;
    Value* inside = nullptr;
    int64_t rest = c;
    for (size_t d = 0; d < sampled.size(); ++d, rest /= taps) {
      const int64_t extent = image[2 + d];
      const auto last = static_cast<double>(extent - 1);
      const int64_t tap = rest % taps;
      Value* at = b.Plus(sampled[d].first, static_cast<double>(tap));
      if (sampling.padding == Padding::kZeros) {
        Value* within =
            b.And(b.Compare("ge", at, 0.0), b.Compare("le", at, last));
        inside = inside == nullptr ? within : b.And(inside, within);
      } else {
        at = Moved(b, at, extent, sampling);
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
  return b.Cast(sum, dtype);
}

bool IsAffineMap(const Value* theta, const Ints& size) {
  const auto rank = static_cast<int64_t>(size.size()) - 2;
  const bool fits = std::all_of(size.begin(), size.end(), [](int64_t extent) {
    return extent >= 1 && extent <= ir::kMaxElements;
  });
  return rank >= 2 && rank <= 3 && fits &&
         theta->type().shape == Shape{size[0], rank, rank + 1};
}

Value* AffineGrid(Builder& b, Value* theta, const Ints& size,
                  bool align_corners) {
  const auto rank = static_cast<int64_t>(size.size()) - 2;
  const Shape places(size.begin() + 2, size.end());
  const int64_t count = ir::NumElements(places);
  std::vector<Value*> columns;
  for (int64_t d = rank - 1; d >= 0; --d) {
    const auto extent = static_cast<double>(places[static_cast<size_t>(d)]);
    Value* at = b.Iota(theta->type().dtype, places, d);
    const double step =
        align_corners ? (extent > 1 ? 2 / (extent - 1) : 0) : 2 / extent;
    at = b.Plus(b.Times(at, step), align_corners ? -1.0 : 1 / extent - 1);
    columns.push_back(b.Reshape(at, {count, 1}));
  }
  columns.push_back(b.Constant(theta->type().dtype, {count, 1}, {1}));
  Value* y =
      b.Matmul(b.BroadcastTo(b.Concat(columns, 1), {size[0], count, rank + 1}),
               theta, false, /*transpose_b=*/true);
  Shape shape{size[0]};
  shape.insert(shape.end(), places.begin(), places.end());
  shape.push_back(rank);
  return b.Reshape(y, shape);
}

}  // namespace fusor::models
