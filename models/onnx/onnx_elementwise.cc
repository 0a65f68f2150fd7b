#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "models/functions.h"
#include "models/onnx/onnx_ops.h"

namespace fusor::models {

using ir::Builder;
using ir::DType;
using ir::Value;

namespace {

template <Value* (Builder::*function)(Value*, ir::Where)>
OnnxResults Function(OnnxCall& call) {
  return {(call.b().*function)(call.Tensor(0), {})};
}

template <Value* (Builder::*function)(Value*, Value*, ir::Where)>
OnnxResults Arithmetic(OnnxCall& call) {
  return {(call.b().*function)(call.Tensor(0), call.Tensor(1), {})};
}

// Any number of operands.
template <Value* (Builder::*function)(Value*, Value*, ir::Where)>
Value* Combined(OnnxCall& call) {
  Value* all = nullptr;
  for (Value* x : call.Tensors()) {
    all = all == nullptr ? x : (call.b().*function)(all, x, {});
  }
  return all;
}
template <Value* (Builder::*function)(Value*, Value*, ir::Where)>
OnnxResults Variadic(OnnxCall& call) {
  return {Combined<function>(call)};
}
OnnxResults Mean(OnnxCall& call) {
  return {call.b().Divide(Combined<&Builder::Plus>(call),
                          static_cast<double>(call.num_inputs()))};
}

template <char first, char second>
OnnxResults Compare(OnnxCall& call) {
  return {call.b().Compare({first, second}, call.Tensor(0), call.Tensor(1))};
}
OnnxResults Xor(OnnxCall& call) { return Compare<'n', 'e'>(call); }

// Integer division truncates.
OnnxResults Divide(OnnxCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor(0);
  Value* y = call.Tensor(1);
  const DType dtype = x->type().dtype;
  if (ir::IsFloat(dtype)) return {b.Divide(x, y)};
  if (dtype == DType::kU8) return {b.FloorDivide(x, y)};
  Value* quotient = b.FloorDivide(b.Abs(x), b.Abs(y));
  Value* negative =
      b.Compare("ne", b.Compare("lt", x, 0.0), b.Compare("lt", y, 0.0));
  return {b.Select(negative, b.Neg(quotient), quotient)};
}

OnnxResults Mod(OnnxCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor(0);
  Value* y = call.Tensor(1);
  if (!call.Flag("fmod", false)) return {b.Remainder(x, y)};
  Value* rest = b.Remainder(b.Abs(x), b.Abs(y));
  return {b.Select(b.Compare("lt", x, 0.0), b.Neg(rest), rest)};
}

// The result has the dtype of the base.
OnnxResults Pow(OnnxCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor(0);
  Value* exponent = call.Tensor(1);
  const DType dtype = x->type().dtype;
  if (call.IsKnown(1) && exponent->type().num_elements() == 1 &&
      RankOf(exponent) <= RankOf(x)) {
    const double power = call.KnownNumber(1);
    if (power == 1) return {x};
    if (power == 2) return {b.Times(x, x)};
    if (power == 3) return {b.Times(x, b.Times(x, x))};
    if (power == 0.5 && ir::IsFloat(dtype)) return {b.Sqrt(x)};
  }
  // Powers of integers, exact up to 2^53.
  const DType wide = ir::IsFloat(dtype) ? dtype : DType::kF64;
  return {b.Cast(b.Pow(b.Cast(x, wide), b.Cast(exponent, wide)), dtype)};
}

// Computes x 2^y or x 2^-y, rounded down. Shifts by all bits or by negative
// numbers give 0 (right shifts of signed integers: the sign).
OnnxResults BitShift(OnnxCall& call) {
  Builder& b = call.b();
  const DType dtype = call.Tensor(0)->type().dtype;
  Value* x = b.Cast(call.Tensor(0), DType::kI64);
  Value* y = b.Cast(call.Tensor(1), DType::kI64);
  const bool left = call.Choice("direction", {"LEFT", "RIGHT"}) == "LEFT";
  // Powers of 2 up to the greatest one in i64.
  const int64_t bits = std::min<int64_t>(8 * ir::DTypeSize(dtype), 62);
  std::vector<double> powers;
  for (int64_t i = 0; i <= bits; ++i) {
    powers.push_back(std::ldexp(1.0, static_cast<int>(i)));
  }
  Value* power =
      b.Take(b.Constant(DType::kI64, {bits + 1}, std::move(powers)), y, 0);
  Value* shifted = left ? b.Times(x, power) : b.FloorDivide(x, power);
  Value* beyond = b.Or(b.Compare("lt", y, 0.0),
                       b.Compare("gt", y, static_cast<double>(bits)));
  Value* zero = b.ScalarLike(x, 0);
  Value* rest =
      left ? zero
           : b.Select(b.Compare("lt", x, 0.0), b.ScalarLike(x, -1), zero);
  return {b.Cast(b.Select(beyond, rest, shifted), dtype)};
}

OnnxResults BitwiseNot(OnnxCall& call) {
  Value* x = call.Tensor(0);
  const double ones = x->type().dtype == DType::kU8 ? 255 : -1;
  return {call.b().BitwiseXor(x, call.b().ScalarLike(x, ones))};
}

OnnxResults Where(OnnxCall& call) {
  return {call.b().Select(call.Tensor(0), call.Tensor(1), call.Tensor(2))};
}

OnnxResults Cast(OnnxCall& call) {
  call.Flag("saturate", true);  // of 8-bit floats, which this IR doesn't have
  call.Text("round_mode", "up");
  const DType dtype = call.DType("to", DType::kF32);
  if (call.IsEmpty(0)) return {nullptr};
  return {call.b().Cast(call.Tensor(0), dtype)};
}
OnnxResults CastLike(OnnxCall& call) {
  call.Flag("saturate", true);
  call.Text("round_mode", "up");
  return {call.b().Cast(call.Tensor(0), call.Tensor(1)->type().dtype)};
}

OnnxResults IsNan(OnnxCall& call) {
  Value* x = call.Tensor(0);
  return {call.b().Compare("ne", x, x)};
}
OnnxResults IsInf(OnnxCall& call) {
  Builder& b = call.b();
  const double infinity = std::numeric_limits<double>::infinity();
  const bool positive = call.Flag("detect_positive", true);
  const bool negative = call.Flag("detect_negative", true);
  Value* x = call.Tensor(0);
  if (positive && negative) return {b.Compare("eq", b.Abs(x), infinity)};
  if (!positive && !negative) return {b.Compare("lt", b.Abs(x), -infinity)};
  return {b.Compare("eq", x, positive ? infinity : -infinity)};
}

// --- Rounding ----------------------------------------------------------------

OnnxResults Ceil(OnnxCall& call) {
  return {call.b().Neg(call.b().Floor(call.b().Neg(call.Tensor(0))))};
}

OnnxResults Round(OnnxCall& call) {
  return {HalfToEven(call.b(), call.Tensor(0))};
}

OnnxResults Sign(OnnxCall& call) { return {call.b().Sign(call.Tensor(0))}; }

// --- Trigonometric and hyperbolic functions ----------------------------------

template <Value* (*function)(Builder&, Value*)>
OnnxResults Wide(OnnxCall& call) {
  return {InWideFloats(call.b(), function, call.Tensor(0))};
}

// --- Activations -------------------------------------------------------------

OnnxResults Clip(OnnxCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor(0);
  const bool low = call.Has(1);
  const bool high = call.Has(2);
  if (low && high && call.IsKnown(1) && call.IsKnown(2) &&
      ir::IsFloat(x->type().dtype) &&
      call.KnownNumber(1) <= call.KnownNumber(2)) {
    if (call.KnownNumber(1) == 0 && call.KnownNumber(2) == 6)
      return {b.Relu6(x)};
    return {b.Clamp(x, call.KnownNumber(1), call.KnownNumber(2))};
  }
  if (low) x = b.Maximum(x, call.Tensor(1));
  if (high) x = b.Minimum(x, call.Tensor(2));
  return {x};
}

OnnxResults Reciprocal(OnnxCall& call) {
  Value* x = call.Tensor(0);
  return {call.b().Divide(call.b().ScalarLike(x, 1), x)};
}

OnnxResults LeakyRelu(OnnxCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor(0);
  const double alpha = call.Float("alpha", 0.01);
  return {b.Select(b.Compare("lt", x, 0.0), b.Times(x, alpha), x)};
}
OnnxResults ParametricRelu(OnnxCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor(0);
  return {b.Select(b.Compare("lt", x, 0.0), b.Times(x, call.Tensor(1)), x)};
}
OnnxResults ThresholdedRelu(OnnxCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor(0);
  return {b.Select(b.Compare("gt", x, call.Float("alpha", 1)), x,
                   b.ScalarLike(x, 0))};
}

// scale x for positive x, else scale alpha (exp(x / width) - 1).
OnnxResults Exponential(OnnxCall& call, double alpha, double scale,
                        double width) {
  Builder& b = call.b();
  Value* x = call.Tensor(0);
  Value* e = b.Exp(b.Divide(b.Minimum(x, 0.0), width));
  return {b.Select(b.Compare("gt", x, 0.0), b.Times(x, scale),
                   b.Times(b.Minus(e, 1.0), alpha * scale))};
}
OnnxResults Elu(OnnxCall& call) {
  return Exponential(call, call.Float("alpha", 1), 1, 1);
}
OnnxResults Celu(OnnxCall& call) {
  const double alpha = call.Float("alpha", 1);
  if (alpha == 0) call.Throw("attribute alpha: expected another number than 0");
  return Exponential(call, alpha, 1, alpha);
}
// The defaults are those of the specification.
OnnxResults Selu(OnnxCall& call) {
  return Exponential(call, call.Float("alpha", 1.67326319217681884765625),
                     call.Float("gamma", 1.05070102214813232421875), 1);
}

// Clamps scale x + shift to [0, 1].
Value* Ramp(Builder& b, Value* x, double scale, double shift) {
  return b.Clamp(b.Plus(b.Times(x, scale), shift), 0, 1);
}
OnnxResults HardSigmoid(OnnxCall& call) {
  return {Ramp(call.b(), call.Tensor(0), call.Float("alpha", 0.2),
               call.Float("beta", 0.5))};
}
OnnxResults HardSwish(OnnxCall& call) {
  Value* x = call.Tensor(0);
  return {call.b().Times(x, Ramp(call.b(), x, 1.0 / 6, 0.5))};
}

OnnxResults Gelu(OnnxCall& call) {
  const bool exact = call.Text("approximate", "none") == "none";
  Value* x = call.Tensor(0);
  return {exact ? call.b().Gelu(x) : call.b().GeluTanh(x)};
}

Value* Swish(Builder& b, Value* x, double alpha) {
  if (alpha == 1) return b.Silu(x);
  return b.Times(x, b.Sigmoid(b.Times(x, alpha)));
}
OnnxResults Swish(OnnxCall& call) {
  return {Swish(call.b(), call.Tensor(0), call.Float("alpha", 1))};
}
OnnxResults SwiGlu(OnnxCall& call) {
  Value* gate = Swish(call.b(), call.Tensor(0), call.Float("alpha", 1));
  return {call.b().Times(gate, call.Tensor(1))};
}

OnnxResults Softplus(OnnxCall& call) {
  return {call.b().Softplus(call.Tensor(0))};
}
OnnxResults Softsign(OnnxCall& call) {
  Value* x = call.Tensor(0);
  return {call.b().Divide(x, call.b().Plus(call.b().Abs(x), 1.0))};
}
OnnxResults Mish(OnnxCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor(0);
  return {b.Times(x, b.Tanh(b.Softplus(x)))};
}

// Returns 0 if |x| <= lambd, otherwise x moved towards 0 by the bias.
OnnxResults Shrink(OnnxCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor(0);
  const double limit = call.Float("lambd", 0.5);
  const double bias = call.Float("bias", 0);
  Value* inner =
      b.Select(b.Compare("lt", x, -limit), b.Plus(x, bias), b.ScalarLike(x, 0));
  return {b.Select(b.Compare("gt", x, limit), b.Minus(x, bias), inner)};
}

constexpr OnnxOp kElementwiseOps[] = {
    {"Abs", Function<&Builder::Abs>},
    {"Acos", Wide<ArcCosine>},
    {"Acosh", Wide<AreaCosine>},
    {"Add", Arithmetic<&Builder::Plus>, "++"},
    {"And", Arithmetic<&Builder::And>},
    {"Asin", Wide<ArcSine>},
    {"Asinh", Wide<AreaSine>},
    {"Atan", Wide<ArcTangent>},
    {"Atanh", Wide<AreaTangent>},
    {"BitShift", BitShift},
    {"BitwiseAnd", Arithmetic<&Builder::BitwiseAnd>},
    {"BitwiseNot", BitwiseNot},
    {"BitwiseOr", Arithmetic<&Builder::BitwiseOr>},
    {"BitwiseXor", Arithmetic<&Builder::BitwiseXor>},
    {"Cast", Cast, "="},
    {"CastLike", CastLike, "="},
    {"Ceil", Ceil},
    {"Celu", Celu},
    {"Clip", Clip},
    {"Cos", Function<&Builder::Cos>},
    {"Cosh", Wide<HyperbolicCosine>},
    {"Div", Divide},
    {"Elu", Elu},
    {"Equal", Compare<'e', 'q'>},
    {"Erf", Function<&Builder::Erf>},
    {"Exp", Function<&Builder::Exp>},
    {"Floor", Function<&Builder::Floor>},
    {"Gelu", Gelu},
    {"Greater", Compare<'g', 't'>},
    {"GreaterOrEqual", Compare<'g', 'e'>},
    {"HardSigmoid", HardSigmoid},
    {"HardSwish", HardSwish},
    {"IsInf", IsInf},
    {"IsNaN", IsNan},
    {"LeakyRelu", LeakyRelu},
    {"Less", Compare<'l', 't'>},
    {"LessOrEqual", Compare<'l', 'e'>},
    {"Log", Function<&Builder::Log>},
    {"Max", Variadic<&Builder::Maximum>},
    {"Mean", Mean},
    {"Min", Variadic<&Builder::Minimum>},
    {"Mish", Mish},
    {"Mod", Mod},
    {"Mul", Arithmetic<&Builder::Times>, "++"},
    {"Neg", Function<&Builder::Neg>},
    {"Not", Function<&Builder::Not>},
    {"Or", Arithmetic<&Builder::Or>},
    {"PRelu", ParametricRelu, "-w"},
    {"Pow", Pow},
    {"Reciprocal", Reciprocal},
    {"Relu", Function<&Builder::Relu>},
    {"Round", Round},
    {"Selu", Selu},
    {"Shrink", Shrink},
    {"Sigmoid", Function<&Builder::Sigmoid>},
    {"Sign", Sign},
    {"Sin", Function<&Builder::Sin>},
    {"Sinh", Wide<HyperbolicSine>},
    {"Softplus", Softplus},
    {"Softsign", Softsign},
    {"Sqrt", Function<&Builder::Sqrt>},
    {"Sub", Arithmetic<&Builder::Minus>, "++"},
    {"Sum", Variadic<&Builder::Plus>},
    {"SwiGLU", SwiGlu},
    {"Swish", Swish},
    {"Tan", Wide<Tangent>},
    {"Tanh", Function<&Builder::Tanh>},
    {"ThresholdedRelu", ThresholdedRelu},
    {"Where", Where},
    {"Xor", Xor},
};

}  // namespace

std::span<const OnnxOp> OnnxElementwiseOps() { return kElementwiseOps; }

}  // namespace fusor::models
