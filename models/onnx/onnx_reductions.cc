#include <algorithm>
#include <numeric>
#include <string>

#include "models/functions.h"
#include "models/onnx/onnx_ops.h"

namespace fusor::models {

using ir::Builder;
using ir::DType;
using ir::Shape;
using ir::Value;

namespace {

using Ints = std::vector<int64_t>;

// The operand and axes of a reduction. Without axes, reduces all dimensions, or
// none with noop_with_empty_axes.
struct Reduced {
  Value* x;
  Ints axes;
  bool keep;
};
Reduced ReducedOf(OnnxCall& call) {
  Reduced r{call.Tensor(0), {}, call.Flag("keepdims", true)};
  const bool none = call.Flag("noop_with_empty_axes", false);
  r.axes = AxesOf(call, r.x, 1);
  if (r.axes.empty() && !none) r.axes = AllAxes(RankOf(r.x));
  return r;
}

Value* Reduce(Builder& b, const char* kind, const Reduced& r) {
  if (r.axes.empty()) return r.x;
  Value* y =
      b.Add("reduce", {r.x}, {{"kind", std::string(kind)}, {"dims", r.axes}})
          ->output();
  if (!r.keep) return y;
  Shape shape = ShapeOf(r.x);
  for (const int64_t axis : r.axes) shape[static_cast<size_t>(axis)] = 1;
  return b.Reshape(y, shape);
}
Value* Sum(Builder& b, Value* x, const Reduced& r) {
  return Reduce(b, "sum", {x, r.axes, r.keep});
}

OnnxResults ReduceSum(OnnxCall& call) {
  return {Reduce(call.b(), "sum", ReducedOf(call))};
}
OnnxResults ReduceProd(OnnxCall& call) {
  return {Reduce(call.b(), "prod", ReducedOf(call))};
}
OnnxResults ReduceMax(OnnxCall& call) {
  const Reduced r = ReducedOf(call);
  const bool flags = r.x->type().dtype == DType::kBool;
  return {Reduce(call.b(), flags ? "any" : "max", r)};
}
OnnxResults ReduceMin(OnnxCall& call) {
  const Reduced r = ReducedOf(call);
  const bool flags = r.x->type().dtype == DType::kBool;
  return {Reduce(call.b(), flags ? "all" : "min", r)};
}
OnnxResults ReduceMean(OnnxCall& call) {
  const Reduced r = ReducedOf(call);
  if (r.axes.empty()) return {r.x};
  return {call.b().ReduceMean(r.x, r.axes, r.keep)};
}
OnnxResults ReduceL1(OnnxCall& call) {
  const Reduced r = ReducedOf(call);
  return {Sum(call.b(), call.b().Abs(r.x), r)};
}
OnnxResults ReduceSumSquare(OnnxCall& call) {
  const Reduced r = ReducedOf(call);
  return {Sum(call.b(), call.b().Times(r.x, r.x), r)};
}
OnnxResults ReduceL2(OnnxCall& call) {
  Builder& b = call.b();
  const Reduced r = ReducedOf(call);
  const DType dtype = r.x->type().dtype;
  Value* sum = Sum(b, b.Times(r.x, r.x), r);
  return {b.Cast(b.Sqrt(b.Cast(sum, ir::IsFloat(dtype) ? dtype : DType::kF64)),
                 dtype)};
}
OnnxResults ReduceLogSum(OnnxCall& call) {
  return {call.b().Log(Reduce(call.b(), "sum", ReducedOf(call)))};
}
OnnxResults ReduceLogSumExp(OnnxCall& call) {
  Builder& b = call.b();
  const Reduced r = ReducedOf(call);
  if (r.axes.empty()) return {r.x};
  Value* peak = b.StopGradient(b.ReduceMax(r.x, r.axes, /*keepdim=*/true));
  Value* sum = Sum(b, b.Exp(b.Minus(r.x, peak)), r);
  return {b.Plus(b.Log(sum), b.Reshape(peak, ShapeOf(sum)))};
}

template <Value* (Builder::*find)(Value*, int64_t, bool, bool, ir::Where)>
OnnxResults ArgExtremum(OnnxCall& call) {
  Value* x = call.Tensor(0);
  const int64_t axis = AxisAttribute(call, x, 0);
  return {(call.b().*find)(x, axis, call.Flag("keepdims", true),
                           call.Flag("select_last_index", false), {})};
}

OnnxResults CumulativeSum(OnnxCall& call) {
  Value* x = call.Tensor(0);
  const int64_t axis = AxisOf(call, call.KnownInt(1), RankOf(x));
  return {call.b().CumulativeSum(x, axis, call.Flag("exclusive", false),
                                 call.Flag("reverse", false))};
}

OnnxResults CumulativeProducts(OnnxCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor(0);
  const int64_t axis = AxisOf(call, call.KnownInt(1), RankOf(x));
  const bool reverse = call.Flag("reverse", false);
  const bool exclusive = call.Flag("exclusive", false);
  if (exclusive) x = MovedBy(b, x, axis, 1, reverse);
  return {CumulativeProduct(b, x, axis, reverse)};
}

constexpr OnnxOp kReductionsOps[] = {
    {"ArgMax", ArgExtremum<&Builder::ArgMax>},
    {"ArgMin", ArgExtremum<&Builder::ArgMin>},
    {"CumProd", CumulativeProducts},
    {"CumSum", CumulativeSum},
    {"ReduceL1", ReduceL1},
    {"ReduceL2", ReduceL2},
    {"ReduceLogSum", ReduceLogSum},
    {"ReduceLogSumExp", ReduceLogSumExp},
    {"ReduceMax", ReduceMax},
    {"ReduceMean", ReduceMean},
    {"ReduceMin", ReduceMin},
    {"ReduceProd", ReduceProd},
    {"ReduceSum", ReduceSum},
    {"ReduceSumSquare", ReduceSumSquare},
};

}  // namespace

std::span<const OnnxOp> OnnxReductionOps() { return kReductionsOps; }

}  // namespace fusor::models
