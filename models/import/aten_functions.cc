// Mathematical functions, reductions to flags and products, and order.

#include <algorithm>
#include <limits>
#include <string>

#include "models/functions.h"
#include "models/import/aten_ops.h"

namespace fusor::models {

using ir::Builder;
using ir::DType;
using ir::Value;

namespace {

using Values = std::vector<Value*>;

template <Value* (*function)(Builder&, Value*)>
Values Wide(AtenCall& call) {
  return {InWideFloats(call.b(), function, FloatSelf(call))};
}

Values Atan2(AtenCall& call) {
  Builder& b = call.b();
  Value* y = FloatSelf(call);
  Value* x = AsFloat(call, call.Tensor("other"));
  const DType dtype = Promote(y, x);
  const DType wide = ir::DTypeSize(dtype) < 4 ? DType::kF32 : dtype;
  return {b.Cast(ArcTangent2(b, b.Cast(y, wide), b.Cast(x, wide)), dtype)};
}

Values Round(AtenCall& call) {
  Value* x = call.Tensor("self");
  return {ir::IsFloat(x->type().dtype) ? HalfToEven(call.b(), x) : x};
}

Values Sign(AtenCall& call) {
  Value* x = call.Tensor("self");
  return {x->type().dtype == DType::kBool ? x : SignOf(call.b(), x)};
}

Values IsNan(AtenCall& call) {
  Value* x = FloatSelf(call);
  return {call.b().Compare("ne", x, x)};
}

Values IsInf(AtenCall& call) {
  Builder& b = call.b();
  return {b.Compare("eq", b.Abs(FloatSelf(call)),
                    std::numeric_limits<double>::infinity())};
}

// A number to the power of a tensor.
Values ScalarPow(AtenCall& call) {
  Builder& b = call.b();
  Value* exponent = AsFloat(call, call.Tensor("exponent"));
  return {b.Pow(b.ScalarLike(exponent, call.Number("self")), exponent)};
}

Values Softshrink(AtenCall& call) {
  Builder& b = call.b();
  Value* x = FloatSelf(call);
  const double limit = call.Number("lambd", 0.5);
  Value* rest = b.Select(b.Compare("lt", x, -limit), b.Plus(x, limit),
                         b.ScalarLike(x, 0));
  return {b.Select(b.Compare("gt", x, limit), b.Minus(x, limit), rest)};
}

// One weight, or one per channel, of dimension 1.
Values ParametricRelu(AtenCall& call) {
  Builder& b = call.b();
  Value* x = FloatSelf(call);
  Value* weight = call.Tensor("weight");
  const bool one = weight->type().num_elements() == 1;
  weight = one ? b.Reshape(weight, {})
               : b.BroadcastAlong(weight, x->type(), RankOf(x) > 1 ? 1 : 0);
  return {b.Select(b.Compare("gt", x, 0.0), x, b.Times(x, weight))};
}

Value* Reduce(AtenCall& call, const char* kind, Value* x) {
  Builder& b = call.b();
  const std::vector<int64_t> given = ReducedDims(call, x);
  std::vector<int64_t> dims;
  ir::Shape kept = ShapeOf(x);
  for (const int64_t dim : given) {
    dims.push_back(DimOf(call, dim, RankOf(x)));
    kept[static_cast<size_t>(dims.back())] = 1;
  }
  Value* y = x;
  if (!dims.empty()) {
    std::sort(dims.begin(), dims.end());
    y = b.Add("reduce", {x}, {{"kind", std::string(kind)}, {"dims", dims}})
            ->output();
  }
  return call.Bool("keepdim", false) ? b.Reshape(y, kept) : y;
}

template <bool kAll>
Values Flags(AtenCall& call) {
  Value* x = call.Tensor("self");
  if (x->type().dtype != DType::kBool) x = call.b().Compare("ne", x, 0.0);
  return {Reduce(call, kAll ? "all" : "any", x)};
}

Values Product(AtenCall& call) {
  Value* x = call.Tensor("self");
  const DType own = x->type().dtype;
  x = call.b().Cast(x, call.DType(ir::IsFloat(own) ? own : DType::kI64));
  return {Reduce(call, "prod", x)};
}

Values Ordered(AtenCall& call, Value* x, int64_t count, bool largest) {
  const int64_t dim = DimArgument(call, x, "dim", -1);
  const int64_t extent = ShapeOf(x)[static_cast<size_t>(dim)];
  if (count < 0) count = extent;
  if (count < 1 || count > extent || extent > kMostRanked) {
    call.Throw(fmt::format("{} of {}: expected at most {} elements", count,
                           ToString(x->type()), kMostRanked));
  }
  const Ranked ranked = Leading(call.b(), x, dim, count, largest);
  return {ranked.values, ranked.indices};
}

Values TopElements(AtenCall& call) {
  call.Bool("sorted", true);  // any order is allowed otherwise
  return Ordered(call, call.Tensor("self"), call.Int("k"),
                 call.Bool("largest", true));
}

Values Sort(AtenCall& call) {
  call.Bool("stable", false);  // it always is
  return Ordered(call, call.Tensor("self"), /*count=*/-1,
                 call.Bool("descending", false));
}

Values ArgSort(AtenCall& call) { return {Sort(call)[1]}; }

constexpr AtenOp kFunctionOps[] = {
    {"acos.default", Wide<ArcCosine>},
    {"acosh.default", Wide<AreaCosine>},
    {"all.default", Flags<true>},
    {"all.dim", Flags<true>},
    {"all.dims", Flags<true>},
    {"any.default", Flags<false>},
    {"any.dim", Flags<false>},
    {"any.dims", Flags<false>},
    {"argsort.default", ArgSort},
    {"argsort.stable", ArgSort},
    {"asin.default", Wide<ArcSine>},
    {"asinh.default", Wide<AreaSine>},
    {"atan2.default", Atan2},
    {"atan.default", Wide<ArcTangent>},
    {"atanh.default", Wide<AreaTangent>},
    {"cosh.default", Wide<HyperbolicCosine>},
    {"expm1.default", Wide<ExpMinusOne>},
    {"isinf.default", IsInf},
    {"isnan.default", IsNan},
    {"log1p.default", Wide<LogOnePlus>},
    {"pow.Scalar", ScalarPow},
    {"prelu.default", ParametricRelu},
    {"prod.default", Product},
    {"prod.dim_int", Product},
    {"round.default", Round},
    {"sign.default", Sign},
    {"sinh.default", Wide<HyperbolicSine>},
    {"softshrink.default", Softshrink},
    {"sort.default", Sort},
    {"sort.stable", Sort},
    {"tan.default", Wide<Tangent>},
    {"topk.default", TopElements},
};

}  // namespace

std::span<const AtenOp> AtenFunctionOps() { return kFunctionOps; }

}  // namespace fusor::models
