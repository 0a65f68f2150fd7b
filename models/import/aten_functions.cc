// Mathematical functions, reductions to flags and products, and order.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "models/functions.h"
#include "models/import/aten_ops.h"
#include "models/special_functions.h"

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

Values RoundToDecimals(AtenCall& call) {
  Builder& b = call.b();
  const double factor =
      std::pow(10, static_cast<double>(call.Int("decimals", 0)));
  Value* x = FloatSelf(call);
  return {b.Divide(HalfToEven(b, b.Times(x, factor)), b.ScalarLike(x, factor))};
}

Values Sign(AtenCall& call) {
  Value* x = call.Tensor("self");
  return {x->type().dtype == DType::kBool ? x : call.b().Sign(x)};
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

Values ErfComplement(AtenCall& call) {
  Builder& b = call.b();
  Value* x = FloatSelf(call);
  return {b.Minus(b.ScalarLike(x, 1), b.Erf(x))};
}

// log(x / (1 - x)), of x clamped to [eps, 1 - eps] if eps is given
Values Logit(AtenCall& call) {
  Builder& b = call.b();
  Value* x = FloatSelf(call);
  if (call.Has("eps")) {
    const double epsilon = call.Number("eps");
    x = b.Clamp(x, epsilon, 1 - epsilon);
  }
  return {b.Log(b.Divide(x, b.Minus(b.ScalarLike(x, 1), x)))};
}

// x log(y), 0 for x = 0
Values XLogY(AtenCall& call) {
  Builder& b = call.b();
  Value* x = FloatSelf(call);
  Value* y = AsFloat(call, call.Tensor("other"));
  Value* none = b.And(b.Compare("eq", x, 0.0), b.Compare("eq", y, y));
  y = b.Select(none, b.ScalarLike(y, 1), y);
  return {b.Times(x, b.Log(y))};
}

// 0 for negative, 1 for positive elements, "values" for 0
Values Heaviside(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  Value* rest = b.Select(b.Compare("lt", x, 0.0), b.ScalarLike(x, 0), x);
  Value* step = b.Select(b.Compare("gt", x, 0.0), b.ScalarLike(x, 1), rest);
  return {b.Select(b.Compare("eq", x, 0.0), call.Tensor("values"),
                   b.StopGradient(step))};
}

// The squares of large numbers would overflow, so the greater side is factored
// out. An infinite side counts even if the other one is NaN.
Values Hypotenuse(AtenCall& call) {
  Builder& b = call.b();
  const double infinity = std::numeric_limits<double>::infinity();
  Value* first = call.Tensor("self");
  Value* second = call.Tensor("other");
  const ir::Shape shape = ShapeOf(b.Plus(first, second));
  first = b.BroadcastTo(first, shape);
  second = b.BroadcastTo(second, shape);
  Value* x = b.Abs(first);
  Value* y = b.Abs(second);
  Value* greater = b.Compare("ge", x, y);
  Value* most = b.Select(greater, x, y);
  Value* divisor =
      b.Select(b.Compare("eq", most, 0.0), b.ScalarLike(most, 1), most);
  Value* ratio = b.Divide(b.Select(greater, y, x), divisor);
  Value* side = b.Times(most, b.Sqrt(b.Plus(b.Times(ratio, ratio), 1.0)));
  Value* infinite =
      b.Or(b.Compare("eq", x, infinity), b.Compare("eq", y, infinity));
  side = b.Select(infinite, b.ScalarLike(side, infinity), side);
  return {b.CustomGradient(side, {first, second}, [&](Value* dy) {
    return Values{b.Times(dy, b.Divide(first, side)),
                  b.Times(dy, b.Divide(second, side))};
  })};
}

// sin(pi x) / (pi x), 1 for 0
Values Sinc(AtenCall& call) {
  Builder& b = call.b();
  Value* x = b.Times(FloatSelf(call), M_PI);
  Value* none = b.Compare("eq", x, 0.0);
  Value* divisor = b.Select(none, b.ScalarLike(x, 1), x);
  return {b.Select(none, b.ScalarLike(x, 1), b.Divide(b.Sin(x), divisor))};
}

Values FloatPower(AtenCall& call) {
  Builder& b = call.b();
  Value* x = b.Cast(call.Tensor("self"), DType::kF64);
  return {b.Pow(x, call.IsTensor("exponent")
                       ? b.Cast(call.Tensor("exponent"), DType::kF64)
                       : b.ScalarLike(x, call.Number("exponent")))};
}

// |x - y| <= atol + rtol |y|, or both are equal
Values IsClose(AtenCall& call) {
  Builder& b = call.b();
  Value* x = FloatSelf(call);
  Value* y = AsFloat(call, call.Tensor("other"));
  Value* most = b.Plus(b.Times(b.Abs(y), call.Number("rtol", 1e-5)),
                       call.Number("atol", 1e-8));
  Value* near =
      b.And(b.Compare("le", b.Abs(b.Minus(x, y)), most),
            b.Compare("lt", b.Abs(y), std::numeric_limits<double>::infinity()));
  Value* close = b.Or(b.Compare("eq", x, y), near);
  if (!call.Bool("equal_nan", false)) return {close};
  return {b.Or(close, b.And(b.Compare("ne", x, x), b.Compare("ne", y, y)))};
}

Values IsFinite(AtenCall& call) {
  Builder& b = call.b();
  return {b.Compare("lt", b.Abs(FloatSelf(call)),
                    std::numeric_limits<double>::infinity())};
}

template <bool kNegative>
Values IsInfinity(AtenCall& call) {
  const double infinity = std::numeric_limits<double>::infinity();
  return {call.b().Compare("eq", FloatSelf(call),
                           kNegative ? -infinity : infinity)};
}

double GreatestOf(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return std::numeric_limits<double>::max();
    case DType::kF16:
      return 65504;
    case DType::kBF16:
      return 0x1.fep127;
    default:
      return std::numeric_limits<float>::max();
  }
}

Values NanToNum(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  const double nan = call.Number("nan", 0);
  const DType dtype = x->type().dtype;
  if (!ir::IsFloat(dtype)) return {x};
  const double greatest = GreatestOf(dtype);
  const double high = call.Number("posinf", greatest);
  const double low = call.Number("neginf", -greatest);
  const double infinity = std::numeric_limits<double>::infinity();
  x = b.Select(b.Compare("ne", x, x), b.ScalarLike(x, nan), x);
  x = b.Select(b.Compare("eq", x, infinity), b.ScalarLike(x, high), x);
  return {b.Select(b.Compare("eq", x, -infinity), b.ScalarLike(x, low), x)};
}

Values Square(AtenCall& call) {
  Value* x = call.Tensor("self");
  if (x->type().dtype == DType::kBool) x = call.b().Cast(x, DType::kI64);
  return {call.b().Times(x, x)};
}

// x without its integer part, with the sign of x.
Values Fraction(AtenCall& call) {
  Builder& b = call.b();
  Value* x = FloatSelf(call);
  Value* rest = b.Minus(b.Abs(x), b.StopGradient(b.Floor(b.Abs(x))));
  return {b.Select(b.Compare("lt", x, 0.0), b.Neg(rest), rest)};
}

// self + weight (end - self)
Values Lerp(AtenCall& call) {
  Builder& b = call.b();
  Value* start = call.Tensor("self");
  Value* way = b.Minus(call.Tensor("end"), start);
  return {b.Plus(start, call.IsTensor("weight")
                            ? b.Times(way, call.Tensor("weight"))
                            : b.Times(way, call.Number("weight")))};
}

// log(exp(unit x) + exp(unit y)) / unit
Value* LogSum(Builder& b, Value* x, Value* y, double unit = 1) {
  const ir::Shape shape = ShapeOf(b.Plus(x, y));
  x = b.BroadcastTo(x, shape);
  y = b.BroadcastTo(y, shape);
  // max + log(1 + exp(-|a - b|)). Equal infinities have no difference.
  Value* same = b.Compare("eq", x, y);
  Value* gap = b.Select(same, b.ScalarLike(x, 0), b.Minus(x, y));
  gap = b.Times(gap, unit);
  Value* greater = b.Compare("gt", gap, 0.0);
  Value* least = b.Select(greater, b.Neg(gap), gap);
  Value* rest = b.Divide(LogOnePlus(b, b.Exp(least)), unit);
  Value* sum = b.Plus(b.Select(greater, x, y), rest);
  return b.CustomGradient(sum, {x, y}, [&](Value* dy) {
    return Values{b.Times(dy, b.Sigmoid(gap)),
                  b.Times(dy, b.Sigmoid(b.Neg(gap)))};
  });
}

// log(base^a + base^b) / log(base); the base is e or 2.
template <bool kOfTwo>
Values LogAddExp(AtenCall& call) {
  return {LogSum(call.b(), FloatSelf(call), AsFloat(call, call.Tensor("other")),
                 kOfTwo ? M_LN2 : 1)};
}

// The logarithms of cumulative sums of exponentials. As in CumulativeProduct,
// each round doubles the number of terms.
Values LogCumulativeSum(AtenCall& call) {
  Builder& b = call.b();
  Value* x = FloatSelf(call);
  const int64_t dim = DimArgument(call, x, "dim");
  const int64_t extent = ShapeOf(x)[static_cast<size_t>(dim)];
  for (int64_t distance = 1; distance < extent; distance *= 2) {
    x = LogSum(b, x,
               MovedBy(b, x, dim, distance, /*reverse=*/false,
                       -std::numeric_limits<double>::infinity()));
  }
  return {x};
}

// The greatest or least elements so far, the last one of equal ones, and their
// indices. NaN counts as either.
template <bool kGreatest>
Values CumulativeExtremum(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  const int64_t dim = DimArgument(call, x, "dim");
  const int64_t extent = ShapeOf(x)[static_cast<size_t>(dim)];
  Value* best = b.StopGradient(x);
  Value* index = b.Iota(DType::kI64, ShapeOf(x), dim);
  for (int64_t distance = 1; distance < extent; distance *= 2) {
    // The first element is among those of each prefix, so it may move in.
    std::vector<double> positions;
    for (int64_t i = 0; i < extent; ++i) {
      positions.push_back(
          static_cast<double>(std::max<int64_t>(i - distance, 0)));
    }
    Value* from = b.Constant(DType::kI32, {extent}, std::move(positions));
    Value* earlier = b.Take(best, from, dim);
    Value* better = b.Compare(kGreatest ? "gt" : "lt", earlier, best);
    better = b.And(b.Or(better, b.Compare("ne", earlier, earlier)),
                   b.Compare("eq", best, best));
    best = b.Select(better, earlier, best);
    index = b.Select(better, b.Take(index, from, dim), index);
  }
  return {b.TakeAlong(x, index, dim), index};
}

// log gamma of x, x - 1/2, ..: the logarithm of the multivariate gamma
// function.
Values MultivariateLogGamma(AtenCall& call) {
  Builder& b = call.b();
  Value* x = FloatSelf(call);
  const int64_t p = call.Int("p");
  constexpr int64_t kMost = 256;
  if (p < 1 || p > kMost) {
    call.Throw(fmt::format("p {}: expected 1 to {}", p, kMost));
  }
  Value* sum =
      b.ScalarLike(x, static_cast<double>(p * (p - 1)) / 4 * std::log(M_PI));
  for (int64_t i = 0; i < p; ++i) {
    Value* shifted = b.Minus(x, static_cast<double>(i) / 2);
    sum = b.Plus(sum, InWideFloats(b, LogGamma, shifted));
  }
  return {sum};
}

// The distribution function of the standard normal distribution.
Values NormalProbability(AtenCall& call) {
  Builder& b = call.b();
  Value* x = FloatSelf(call);
  return {b.Times(b.Plus(b.Erf(b.Times(x, M_SQRT1_2)), 1.0), 0.5)};
}

// -x log(x), 0 for 0 and negative infinity before it
Values Entropy(AtenCall& call) {
  Builder& b = call.b();
  Value* x = FloatSelf(call);
  Value* log = b.Log(x);
  Value* y = b.Neg(b.Times(x, log));
  y = b.Select(b.Compare("eq", x, 0.0), b.ScalarLike(x, 0), y);
  y = b.Select(b.Compare("lt", x, 0.0),
               b.ScalarLike(x, -std::numeric_limits<double>::infinity()), y);
  return {b.CustomGradient(y, {x}, [&](Value* dy) {
    return Values{b.Neg(b.Times(dy, b.Plus(log, 1.0)))};
  })};
}

// x log(1 + y), 0 for x = 0
Values XLogOnePlusY(AtenCall& call) {
  Builder& b = call.b();
  Value* x = FloatSelf(call);
  Value* y = AsFloat(call, call.Tensor("other"));
  Value* none = b.And(b.Compare("eq", x, 0.0), b.Compare("eq", y, y));
  y = b.Select(none, b.ScalarLike(y, 0), y);
  return {b.Times(x, InWideFloats(b, LogOnePlus, y))};
}

// Whether x is negative, or the zero of that sign.
Value* IsNegative(Builder& b, Value* x) {
  Value* negative = b.Compare("lt", x, 0.0);
  if (!ir::IsFloat(x->type().dtype)) return negative;
  Value* none = b.Compare("eq", x, 0.0);
  Value* inverse =
      b.Divide(b.ScalarLike(x, 1), b.Select(none, x, b.ScalarLike(x, 1)));
  return b.Or(negative, b.And(none, b.Compare("lt", inverse, 0.0)));
}

Values SignBit(AtenCall& call) {
  Value* x = call.Tensor("self");
  if (x->type().dtype == DType::kBool) return {x};
  return {IsNegative(call.b(), x)};
}

// The magnitude of self with the sign of other. The gradient for 0 is 0.
Values CopySign(AtenCall& call) {
  Builder& b = call.b();
  Value* x = FloatSelf(call);
  Value* size = b.Abs(x);
  if (!call.IsTensor("other")) {
    return {std::signbit(call.Number("other")) ? b.Neg(size) : size};
  }
  Value* negative = IsNegative(b, AsFloat(call, call.Tensor("other")));
  return {b.Select(negative, b.Neg(size), size)};
}

Values IsReal(AtenCall& call) {
  return {call.b().Constant(DType::kBool, ShapeOf(call.Tensor("self")), {1})};
}

// self 2^other
Values LoadExponent(AtenCall& call) {
  Builder& b = call.b();
  Value* x = FloatSelf(call);
  Value* y = AsFloat(call, call.Tensor("other"));
  const DType dtype = Promote(x, y);
  return {b.Times(b.Cast(x, dtype), b.Exp(b.Times(b.Cast(y, dtype), M_LN2)))};
}

// Whether each element is among those of a second tensor, or is not.
Values IsIn(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("elements");
  Value* of = call.Tensor("test_elements");
  call.Bool("assume_unique", false);
  const DType dtype = Promote(x, of);
  ir::Shape pairs = ShapeOf(x);
  const int64_t rank = RankOf(x);
  pairs.push_back(of->type().num_elements());
  std::vector<int64_t> dims(ShapeOf(x).size());
  std::iota(dims.begin(), dims.end(), 0);
  of = b.Reshape(b.Cast(of, dtype), {pairs.back()});
  Value* equal = b.Compare("eq", b.Broadcast(b.Cast(x, dtype), pairs, dims),
                           b.Broadcast(of, pairs, {rank}));
  Value* found = b.Add("reduce", {equal},
                       {{"kind", std::string("any")},
                        {"dims", std::vector<int64_t>{rank}}})
                     ->output();
  return {call.Bool("invert", false) ? b.Not(found) : found};
}

// The number, if the other operand is NaN.
template <Value* (Builder::*function)(Value*, Value*, ir::Where)>
Values OfNumbers(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  Value* y = call.Tensor("other");
  const DType dtype = Promote(x, y);
  x = b.Cast(x, dtype);
  y = b.Cast(y, dtype);
  Value* found = (b.*function)(x, y, {});
  if (!ir::IsFloat(dtype)) return {found};
  found = b.Select(b.Compare("ne", x, x), y, found);
  return {b.Select(b.Compare("ne", y, y), x, found)};
}

// The product of each pair of elements of two vectors.
Values Outer(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  Value* y = call.Tensor("vec2");
  if (RankOf(x) != 1 || RankOf(y) != 1) {
    call.Throw(fmt::format("expected vectors, got {} and {}",
                           ToString(x->type()), ToString(y->type())));
  }
  const ir::Shape shape{ShapeOf(x)[0], ShapeOf(y)[0]};
  const DType dtype = Promote(x, y);
  return {b.Times(b.Broadcast(b.Cast(x, dtype), shape, {0}),
                  b.Broadcast(b.Cast(y, dtype), shape, {1}))};
}

// x1 . x2 / (max(|x1|, eps) max(|x2|, eps)) along a dimension.
Values CosineSimilarity(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("x1");
  Value* y = call.Tensor("x2");
  const double epsilon = call.Number("eps", 1e-8);
  Value* products = b.Times(x, y);
  const int64_t dim = DimArgument(call, products, "dim", 1);
  // The operands broadcast.
  x = b.BroadcastTo(x, ShapeOf(products));
  y = b.BroadcastTo(y, ShapeOf(products));
  const auto norm = [&](Value* of) {
    Value* square = b.ReduceSum(b.Times(of, of), {dim});
    return b.Sqrt(b.Maximum(square, b.ScalarLike(square, epsilon * epsilon)));
  };
  return {b.Divide(b.ReduceSum(products, {dim}), b.Times(norm(x), norm(y)))};
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

// Sorts the first dimension.
Values SortRows(AtenCall& call) {
  Value* x = call.Tensor("self");
  if (RankOf(x) == 0) return {x};
  const int64_t extent = ShapeOf(x)[0];
  if (extent > kMostRanked) {
    call.Throw(fmt::format("{}: expected at most {} rows", ToString(x->type()),
                           kMostRanked));
  }
  return {Leading(call.b(), x, 0, extent, /*largest=*/false).values};
}

Values ArgSort(AtenCall& call) { return {Sort(call)[1]}; }

constexpr AtenOp kFunctionOps[] = {
    {"acos.default", Wide<ArcCosine>},
    {"acosh.default", Wide<AreaCosine>},
    {"_is_all_true.default", Flags<true>},
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
    {"copysign.Scalar", CopySign},
    {"copysign.Tensor", CopySign},
    {"cosine_similarity.default", CosineSimilarity},
    {"cosh.default", Wide<HyperbolicCosine>},
    {"cummax.default", CumulativeExtremum<true>},
    {"cummin.default", CumulativeExtremum<false>},
    {"digamma.default", Wide<Digamma>},
    {"expm1.default", Wide<ExpMinusOne>},
    {"erfc.default", ErfComplement},
    {"erfinv.default", Wide<InverseErf>},
    {"float_power.Tensor_Scalar", FloatPower},
    {"float_power.Tensor_Tensor", FloatPower},
    {"fmax.default", OfNumbers<&Builder::Maximum>},
    {"fmin.default", OfNumbers<&Builder::Minimum>},
    {"frac.default", Fraction},
    {"heaviside.default", Heaviside},
    {"hypot.default", Hypotenuse},
    {"isclose.default", IsClose},
    {"isfinite.default", IsFinite},
    {"isinf.default", IsInf},
    {"isin.Tensor_Tensor", IsIn},
    {"isnan.default", IsNan},
    {"isneginf.default", IsInfinity<true>},
    {"isposinf.default", IsInfinity<false>},
    {"isreal.default", IsReal},
    {"ldexp.Tensor", LoadExponent},
    {"lerp.Scalar", Lerp},
    {"lerp.Tensor", Lerp},
    {"lgamma.default", Wide<LogGamma>},
    {"log1p.default", Wide<LogOnePlus>},
    {"logit.default", Logit},
    {"logaddexp2.default", LogAddExp<true>},
    {"logaddexp.default", LogAddExp<false>},
    {"logcumsumexp.default", LogCumulativeSum},
    {"msort.default", SortRows},
    {"mvlgamma.default", MultivariateLogGamma},
    {"nan_to_num.default", NanToNum},
    {"outer.default", Outer},
    {"pow.Scalar", ScalarPow},
    {"prelu.default", ParametricRelu},
    {"prod.default", Product},
    {"prod.dim_int", Product},
    {"round.decimals", RoundToDecimals},
    {"round.default", Round},
    {"sign.default", Sign},
    {"sgn.default", Sign},
    {"signbit.default", SignBit},
    {"sinc.default", Sinc},
    {"sinh.default", Wide<HyperbolicSine>},
    {"softshrink.default", Softshrink},
    {"sort.default", Sort},
    {"sort.stable", Sort},
    {"special_entr.default", Entropy},
    {"special_ndtr.default", NormalProbability},
    {"special_xlog1py.default", XLogOnePlusY},
    {"square.default", Square},
    {"tan.default", Wide<Tangent>},
    {"topk.default", TopElements},
    {"xlogy.Tensor", XLogY},
};

}  // namespace

std::span<const AtenOp> AtenFunctionOps() { return kFunctionOps; }

}  // namespace fusor::models
