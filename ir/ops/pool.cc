#include <cmath>
#include <limits>

#include "ir/builder.h"
#include "ir/interpreter/strided_loops.h"
#include "ir/ops/families.h"
#include "ir/support/error.h"

namespace fusor::ir {
namespace {

using Types = std::span<const TensorType>;
using Grads = std::vector<Value*>;
using DOutputs = std::span<Value* const>;
using Ints = std::vector<int64_t>;

void CheckFloat(const TensorType& type) {
  FUSOR_CHECK(IsFloat(type.dtype), kGraph, "expected a floating dtype");
}

Shape PoolShape(const Shape& x, const Attrs& attrs) {
  const Ints& window = attrs.Ints("window");
  const Ints& stride = attrs.Ints("stride");
  const Ints& pad = attrs.Ints("pad");
  FUSOR_CHECK(x.size() == 4, kGraph, "expected [N,C,H,W]");
  CheckType({DType::kF32, x, {}});
  FUSOR_CHECK(window.size() == 2 && stride.size() == 2 && pad.size() == 2,
              kGraph, "expected window, stride and pad of two entries");
  Shape shape{x[0], x[1]};
  for (size_t i = 0; i < 2; ++i) {
    FUSOR_CHECK(window[i] >= 1 && stride[i] >= 1 && pad[i] >= 0 &&
                    window[i] <= kMaxElements && pad[i] <= window[i] / 2,
                kGraph, "window {}, stride {}, pad {}", window[i], stride[i],
                pad[i]);
    const int64_t room = x[2 + i] + 2 * pad[i] - window[i];
    FUSOR_CHECK(room >= 0, kGraph,
                "window of {} does not fit an extent of {} padded by {}",
                window[i], x[2 + i], pad[i]);
    shape.push_back(room / stride[i] + 1);
  }
  return shape;
}

void CheckWindowFitsIndex(const Attrs& attrs) {
  const Ints& window = attrs.Ints("window");
  FUSOR_CHECK(window.size() == 2 && window[0] >= 1 && window[1] >= 1 &&
                  window[0] <= 256 / window[1],
              kGraph, "expected a window of two extents, at most 256 elements");
}

std::vector<TensorType> InferMaxPool(Types in, const Attrs& attrs) {
  CheckFloat(in[0]);
  CheckWindowFitsIndex(attrs);
  const Shape shape = PoolShape(in[0].shape, attrs);
  return {{in[0].dtype, shape, {}}, {DType::kU8, shape, {}}};
}

std::vector<TensorType> InferMaxPoolGrad(Types in, const Attrs& attrs) {
  CheckFloat(in[0]);
  const Shape& shape = attrs.Ints("input_shape");
  FUSOR_CHECK(PoolShape(shape, attrs) == in[0].shape &&
                  in[1].shape == in[0].shape && in[1].dtype == DType::kU8,
              kGraph, "expected gradient and index of the pooled shape");
  return {{in[0].dtype, shape, {}}};
}

std::vector<TensorType> InferMaxPoolGather(Types in, const Attrs& attrs) {
  CheckFloat(in[0]);
  CheckWindowFitsIndex(attrs);
  const Shape shape = PoolShape(in[0].shape, attrs);
  FUSOR_CHECK(in[1].shape == shape && in[1].dtype == DType::kU8, kGraph,
              "expected an index of the pooled shape");
  return {{in[0].dtype, shape, {}}};
}

std::vector<TensorType> InferAvgPool(Types in, const Attrs& attrs) {
  CheckFloat(in[0]);
  return {{in[0].dtype, PoolShape(in[0].shape, attrs), {}}};
}

std::vector<TensorType> InferAvgPoolGrad(Types in, const Attrs& attrs) {
  CheckFloat(in[0]);
  const Shape& shape = attrs.Ints("input_shape");
  FUSOR_CHECK(PoolShape(shape, attrs) == in[0].shape, kGraph,
              "expected a gradient of the pooled shape");
  return {{in[0].dtype, shape, {}}};
}

Attrs GradAttrs(const Node& n) {
  Attrs attrs = n.attrs();
  attrs.Set("input_shape", n.input(0)->type().shape);
  return attrs;
}

Grads GradMaxPool(Builder& b, const Node& n, DOutputs d) {
  return {b.Add("max_pool_grad", {d[0], n.output(1)}, GradAttrs(n))->output()};
}

Grads GradAvgPool(Builder& b, const Node& n, DOutputs d) {
  return {b.Add("avg_pool_grad", {d[0]}, GradAttrs(n))->output()};
}

// Calls window(x plane offset, y element, top, left) for each window. top and
// left are its origin in the plane, negative in the padding.
template <typename Window>
void ForEachWindow(const Shape& x, const Shape& y, const Attrs& attrs,
                   Window window) {
  const Ints& stride = attrs.Ints("stride");
  const Ints& pad = attrs.Ints("pad");
  int64_t to = 0;
  for (int64_t plane = 0; plane < y[0] * y[1]; ++plane) {
    for (int64_t i = 0; i < y[2]; ++i) {
      for (int64_t j = 0; j < y[3]; ++j, ++to) {
        window(plane * x[2] * x[3], to, i * stride[0] - pad[0],
               j * stride[1] - pad[1]);
      }
    }
  }
}

// Calls visit(x element, position in the window) for a window's elements inside
// the plane, row-major.
template <typename Visit>
void ForEachElement(const Shape& x, const Ints& window, int64_t plane,
                    int64_t top, int64_t left, Visit visit) {
  for (int64_t r = 0; r < window[0]; ++r) {
    if (top + r < 0 || top + r >= x[2]) continue;
    for (int64_t c = 0; c < window[1]; ++c) {
      if (left + c < 0 || left + c >= x[3]) continue;
      visit(plane + (top + r) * x[3] + left + c, r * window[1] + c);
    }
  }
}

// Picks the first maximum; a NaN counts as greater than any number.
void EvalMaxPool(const Node& node, EvalInputs in, EvalOutputs out, EvalMode) {
  const Shape& shape = in[0]->type.shape;
  const Ints& window = node.attrs().Ints("window");
  const std::vector<double>& x = in[0]->data;
  ForEachWindow(shape, out[0]->type.shape, node.attrs(),
                [&](int64_t plane, int64_t to, int64_t top, int64_t left) {
                  double best = -std::numeric_limits<double>::infinity();
                  int64_t position = -1;
                  const auto take = [&](int64_t from, int64_t at) {
                    const bool greater =
                        x[from] > best ||
                        (std::isnan(x[from]) && !std::isnan(best));
                    if (position >= 0 && !greater) return;
                    best = x[from];
                    position = at;
                  };
                  ForEachElement(shape, window, plane, top, left, take);
                  out[0]->data[to] = best;
                  out[1]->data[to] = static_cast<double>(position);
                });
}

// Calls visit(x element, y element) for the element of each window at `index`.
template <typename Visit>
void ForEachChosen(const Shape& x, const Shape& y, const Attrs& attrs,
                   const std::vector<double>& index, Visit visit) {
  const int64_t width = attrs.Ints("window")[1];
  ForEachWindow(
      x, y, attrs, [&](int64_t plane, int64_t to, int64_t top, int64_t left) {
        const auto at = static_cast<int64_t>(index[to]);
        const int64_t row = top + at / width;
        const int64_t column = left + at % width;
        FUSOR_CHECK(0 <= row && row < x[2] && 0 <= column && column < x[3],
                    kGraph,
                    "position {} of the window at row {}, column {} "
                    "is outside of the {} x {} image",
                    at, top, left, x[2], x[3]);
        visit(plane + row * x[3] + column, to);
      });
}

void EvalMaxPoolGrad(const Node& node, EvalInputs in, EvalOutputs out,
                     EvalMode) {
  ForEachChosen(
      out[0]->type.shape, in[0]->type.shape, node.attrs(), in[1]->data,
      [&](int64_t to, int64_t from) { out[0]->data[to] += in[0]->data[from]; });
}

void EvalMaxPoolGather(const Node& node, EvalInputs in, EvalOutputs out,
                       EvalMode) {
  ForEachChosen(
      in[0]->type.shape, out[0]->type.shape, node.attrs(), in[1]->data,
      [&](int64_t from, int64_t to) { out[0]->data[to] = in[0]->data[from]; });
}

// Returns the number of elements that an average divides by.
double AverageCount(const Attrs& attrs, const Shape& x, int64_t top,
                    int64_t left) {
  const Ints& window = attrs.Ints("window");
  int64_t count = window[0] * window[1];
  if (!attrs.Bool("count_include_pad")) {
    count = 0;
    ForEachElement(x, window, 0, top, left, [&](int64_t, int64_t) { ++count; });
  }
  return static_cast<double>(count);
}

void EvalAvgPool(const Node& node, EvalInputs in, EvalOutputs out, EvalMode) {
  const Shape& shape = in[0]->type.shape;
  const Ints& window = node.attrs().Ints("window");
  ForEachWindow(shape, out[0]->type.shape, node.attrs(),
                [&](int64_t plane, int64_t to, int64_t top, int64_t left) {
                  double sum = 0;
                  ForEachElement(
                      shape, window, plane, top, left,
                      [&](int64_t from, int64_t) { sum += in[0]->data[from]; });
                  out[0]->data[to] =
                      sum / AverageCount(node.attrs(), shape, top, left);
                });
}

void EvalAvgPoolGrad(const Node& node, EvalInputs in, EvalOutputs out,
                     EvalMode) {
  const Shape& shape = out[0]->type.shape;
  const Ints& window = node.attrs().Ints("window");
  ForEachWindow(
      shape, in[0]->type.shape, node.attrs(),
      [&](int64_t plane, int64_t from, int64_t top, int64_t left) {
        const double share =
            in[0]->data[from] / AverageCount(node.attrs(), shape, top, left);
        ForEachElement(shape, window, plane, top, left,
                       [&](int64_t to, int64_t) { out[0]->data[to] += share; });
      });
}

std::vector<OpDef> MakePoolOps() {
  const std::vector<AttrSpec> geometry = {
      {"window", Ints{}, true}, {"stride", Ints{}, true}, {"pad", Ints{0, 0}}};
  const AttrSpec input_shape{"input_shape", Ints{}, true};
  const AttrSpec include_pad{"count_include_pad", true};
  OpDef base;
  base.fusion = FusionKind::kLibrary;
  base.traits = OpTrait::kPure | OpTrait::kPooling;
  base.layout = LayoutRule::kChosen;
  base.attrs = geometry;

  OpDef max = base;
  max.kind = OpKind::kMaxPool;
  max.name = "max_pool";
  max.summary =
      "x [N,C,H,W] -> maxima, and u8 position of each in its window "
      "(row-major, the first of equal ones)";
  max.precision = PrecisionRule::kFollow;
  max.infer = InferMaxPool;
  max.gradient = GradMaxPool;
  max.eval = EvalMaxPool;

  OpDef max_grad = base;
  max_grad.kind = OpKind::kMaxPoolGrad;
  max_grad.name = "max_pool_grad";
  max_grad.summary =
      "dy, index inside of the image -> dx of input_shape; overlaps add up";
  max_grad.min_inputs = max_grad.max_inputs = 2;
  max_grad.precision = PrecisionRule::kFollow;
  max_grad.attrs.push_back(input_shape);
  max_grad.infer = InferMaxPoolGrad;
  max_grad.eval = EvalMaxPoolGrad;

  OpDef max_gather = base;
  max_gather.kind = OpKind::kMaxPoolGather;
  max_gather.name = "max_pool_gather";
  max_gather.summary =
      "x [N,C,H,W], index of max_pool inside of the image -> x at the index of "
      "each window";
  max_gather.min_inputs = max_gather.max_inputs = 2;
  max_gather.precision = PrecisionRule::kFollow;
  max_gather.infer = InferMaxPoolGather;
  max_gather.eval = EvalMaxPoolGather;

  OpDef avg = base;
  avg.kind = OpKind::kAvgPool;
  avg.name = "avg_pool";
  avg.summary = "x [N,C,H,W] -> window means";
  avg.precision = PrecisionRule::kInfer;
  avg.attrs.push_back(include_pad);
  avg.infer = InferAvgPool;
  avg.gradient = GradAvgPool;
  avg.eval = EvalAvgPool;

  OpDef avg_grad = base;
  avg_grad.kind = OpKind::kAvgPoolGrad;
  avg_grad.name = "avg_pool_grad";
  avg_grad.summary = "dy -> dx of input_shape";
  avg_grad.precision = PrecisionRule::kInfer;
  avg_grad.attrs.push_back(include_pad);
  avg_grad.attrs.push_back(input_shape);
  avg_grad.infer = InferAvgPoolGrad;
  avg_grad.eval = EvalAvgPoolGrad;
  return {max, max_grad, max_gather, avg, avg_grad};
}

}  // namespace

std::span<const OpDef> PoolOps() {
  static const std::vector<OpDef> ops = MakePoolOps();
  return ops;
}

}  // namespace fusor::ir
