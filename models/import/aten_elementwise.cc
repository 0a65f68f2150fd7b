#include <algorithm>
#include <cmath>
#include <string>

#include "models/import/aten_ops.h"

namespace fusor::models {

using ir::Builder;
using ir::DType;
using ir::Shape;
using ir::Value;

namespace {

using Values = std::vector<Value*>;

// Reads an operand. Converts a number to a scalar tensor of dtype `like`, or of
// the dtype that promotion gives.
Value* Operand(AtenCall& call, std::string_view name, Value* like) {
  if (call.IsTensor(name)) return call.Tensor(name);
  const double number = call.Number(name);
  DType dtype = like->type().dtype;
  if (!ir::IsFloat(dtype)) {
    if (number != std::floor(number)) {
      dtype = DType::kF32;
    } else if (dtype == DType::kBool) {
      dtype = DType::kI64;
    }
  }
  return call.b().Scalar(dtype, number);
}

struct Pair {
  Value* a;
  Value* b;
};
// Converts both operands to their common dtype.
Pair Promoted(AtenCall& call, Value* a, Value* b) {
  const DType dtype = Promote(a, b);
  return {call.b().Cast(a, dtype), call.b().Cast(b, dtype)};
}
// One of them may be a number.
Pair Operands(AtenCall& call) {
  if (!call.IsTensor("self")) {
    Value* other = call.Tensor("other");
    return Promoted(call, Operand(call, "self", other), other);
  }
  Value* self = call.Tensor("self");
  return Promoted(call, self, Operand(call, "other", self));
}

template <Value* (Builder::*function)(Value*, ir::Where)>
Values Function(AtenCall& call) {
  return {(call.b().*function)(FloatSelf(call), {})};
}

// The same for functions that keep integers.
template <Value* (Builder::*function)(Value*, ir::Where)>
Values Keeping(AtenCall& call) {
  return {(call.b().*function)(call.Tensor("self"), {})};
}

template <Value* (Builder::*function)(Value*, Value*, ir::Where)>
Values Arithmetic(AtenCall& call) {
  const Pair x = Operands(call);
  return {(call.b().*function)(x.a, x.b, {})};
}

template <Value* (Builder::*function)(Value*, Value*, ir::Where)>
Values WithAlpha(AtenCall& call) {
  const Pair x = Operands(call);
  Value* b = x.b;
  if (const double alpha = call.Number("alpha", 1); alpha != 1) {
    b = call.b().Times(b, alpha);
  }
  return {(call.b().*function)(x.a, b, {})};
}

Value* Truncated(Builder& b, Value* x) {
  return b.Select(b.Compare("lt", x, 0.0), b.Neg(b.Floor(b.Neg(x))),
                  b.Floor(x));
}
Values Trunc(AtenCall& call) { return {Truncated(call.b(), FloatSelf(call))}; }

Values Div(AtenCall& call) {
  Builder& b = call.b();
  const std::string mode = call.Text("rounding_mode", "");
  const Pair x = Operands(call);
  const DType dtype = x.a->type().dtype;
  if (mode.empty()) {
    return {b.Divide(AsFloat(call, x.a), AsFloat(call, x.b))};
  }
  if (mode != "floor" && mode != "trunc") {
    call.Throw("rounding_mode " + mode + ": expected floor, trunc or none");
  }
  if (ir::IsFloat(dtype)) {
    Value* ratio = b.Divide(x.a, x.b);
    return {mode == "floor" ? b.Floor(ratio) : Truncated(b, ratio)};
  }
  if (mode == "floor") return {b.FloorDivide(x.a, x.b)};
  // The quotient of the magnitudes, with the sign.
  Value* quotient = b.FloorDivide(b.Abs(x.a), b.Abs(x.b));
  Value* negative =
      b.Compare("ne", b.Compare("lt", x.a, 0.0), b.Compare("lt", x.b, 0.0));
  return {b.Select(negative, b.Neg(quotient), quotient)};
}

Values FloorDivide(AtenCall& call) {
  const Pair x = Operands(call);
  if (!ir::IsFloat(x.a->type().dtype)) return {call.b().FloorDivide(x.a, x.b)};
  return {call.b().Floor(call.b().Divide(x.a, x.b))};
}

// The remainder with the sign of the dividend.
Values Fmod(AtenCall& call) {
  Builder& b = call.b();
  const Pair x = Operands(call);
  Value* rest = b.Remainder(b.Abs(x.a), b.Abs(x.b));
  return {b.Select(b.Compare("lt", x.a, 0.0), b.Neg(rest), rest)};
}

Values Ceil(AtenCall& call) {
  return {call.b().Neg(call.b().Floor(call.b().Neg(FloatSelf(call))))};
}

// self + value (tensor1 op tensor2)
template <Value* (Builder::*function)(Value*, Value*, ir::Where)>
Values AddCombined(AtenCall& call) {
  Builder& b = call.b();
  Value* self = call.Tensor("self");
  Value* both =
      (b.*function)(call.Tensor("tensor1"), call.Tensor("tensor2"), {});
  if (const double value = call.Number("value", 1); value != 1) {
    both = b.Times(both, value);
  }
  return {b.Plus(self, both)};
}

// Logarithms and powers of base 2 and 10, and angles: a scaled result or
// operand.
Values Log2(AtenCall& call) {
  return {call.b().Times(call.b().Log(FloatSelf(call)), 1 / M_LN2)};
}
Values Log10(AtenCall& call) {
  return {call.b().Times(call.b().Log(FloatSelf(call)), 1 / M_LN10)};
}
Values Exp2(AtenCall& call) {
  return {call.b().Exp(call.b().Times(FloatSelf(call), M_LN2))};
}
Values Degrees(AtenCall& call) {
  return {call.b().Times(FloatSelf(call), 180 / M_PI)};
}
Values Radians(AtenCall& call) {
  return {call.b().Times(FloatSelf(call), M_PI / 180)};
}

Values Reciprocal(AtenCall& call) {
  Value* x = FloatSelf(call);
  return {call.b().Divide(call.b().ScalarLike(x, 1), x)};
}

Values Rsub(AtenCall& call) {
  const Pair x = Operands(call);
  Value* a = x.a;
  if (const double alpha = call.Number("alpha", 1); alpha != 1) {
    a = call.b().Times(a, alpha);
  }
  return {call.b().Minus(x.b, a)};
}

Values PowScalar(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  const double exponent = call.Number("exponent");
  if (exponent == 2) return {b.Times(x, x)};
  if (exponent == 1) return {x};
  x = AsFloat(call, x);
  if (exponent == 0.5) return {b.Sqrt(x)};
  if (exponent == 3) return {b.Times(x, b.Times(x, x))};
  return {b.Pow(x, exponent)};
}

Values PowTensor(AtenCall& call) {
  Value* self = call.Tensor("self");
  const Pair x = Promoted(call, self, Operand(call, "exponent", self));
  return {call.b().Pow(AsFloat(call, x.a), AsFloat(call, x.b))};
}

template <char first, char second>
Values Compare(AtenCall& call) {
  const Pair x = Operands(call);
  return {call.b().Compare({first, second}, x.a, x.b)};
}

Value* AsBool(AtenCall& call, Value* x) {
  return call.b().Cast(x, DType::kBool);
}
Values And(AtenCall& call) {
  return {call.b().And(AsBool(call, call.Tensor("self")),
                       AsBool(call, call.Tensor("other")))};
}
Values Or(AtenCall& call) {
  return {call.b().Or(AsBool(call, call.Tensor("self")),
                      AsBool(call, call.Tensor("other")))};
}
Values Not(AtenCall& call) {
  return {call.b().Not(AsBool(call, call.Tensor("self")))};
}
Values Xor(AtenCall& call) {
  return {call.b().Compare("ne", AsBool(call, call.Tensor("self")),
                           AsBool(call, call.Tensor("other")))};
}

// Bitwise operators on bools are logical.
template <Values (*logical)(AtenCall&),
          Value* (Builder::*function)(Value*, Value*, ir::Where)>
Values Bitwise(AtenCall& call) {
  const Pair x = Operands(call);
  if (x.a->type().dtype == DType::kBool) return logical(call);
  if (ir::IsFloat(x.a->type().dtype)) {
    call.Throw("expected integers or bools, got " + ToString(x.a->type()));
  }
  return {(call.b().*function)(x.a, x.b, {})};
}
Values BitwiseNot(AtenCall& call) {
  Value* x = call.Tensor("self");
  if (x->type().dtype == DType::kBool) return Not(call);
  if (ir::IsFloat(x->type().dtype)) {
    call.Throw("expected integers or bools, got " + ToString(x->type()));
  }
  const double ones = x->type().dtype == DType::kU8 ? 255 : -1;
  return {call.b().BitwiseXor(x, call.b().ScalarLike(x, ones))};
}

// Shifts by the elements of other. As in PyTorch, a left shift by too many bits
// gives 0, and a right shift the sign.
template <bool kLeft>
Values Shift(AtenCall& call) {
  Builder& b = call.b();
  const Pair x = Operands(call);
  const DType dtype = x.a->type().dtype;
  if (ir::IsFloat(dtype) || dtype == DType::kBool) {
    call.Throw("expected integers, got " + ToString(x.a->type()));
  }
  const bool is_signed = dtype != DType::kU8;
  const auto bits = static_cast<int64_t>(8 * ir::DTypeSize(dtype));
  // The powers of 2 that the dtype has.
  const int64_t most = is_signed ? bits - 2 : bits - 1;
  std::vector<double> powers;
  for (int64_t i = 0; i <= most; ++i) {
    powers.push_back(std::ldexp(1, static_cast<int>(i)));
  }
  Value* table = b.Constant(dtype, {most + 1}, std::move(powers));
  Value* inside = b.Compare("le", x.b, static_cast<double>(most));
  if (is_signed) inside = b.And(inside, b.Compare("ge", x.b, 0.0));
  Value* power = b.Take(table, b.Select(inside, x.b, b.Zeros(x.b->type())), 0);
  Value* zero = b.ScalarLike(x.a, 0);
  if (kLeft) {
    Value* rest = zero;
    if (is_signed) {  // the sign bit
      Value* doubled = b.Times(x.a, 2.0);
      Value* last = b.Times(doubled, std::ldexp(1, static_cast<int>(most)));
      rest = b.Select(b.Compare("eq", x.b, static_cast<double>(most + 1)), last,
                      zero);
    }
    return {b.Select(inside, b.Times(x.a, power), rest)};
  }
  Value* sign = zero;
  if (is_signed) {
    sign = b.Select(b.Compare("lt", x.a, 0.0), b.ScalarLike(x.a, -1), zero);
  }
  return {b.Select(inside, b.FloorDivide(x.a, power), sign)};
}

Values Where(AtenCall& call) {
  Value* condition = AsBool(call, call.Tensor("condition"));
  const bool tensor = call.IsTensor("self");
  Value* other = call.IsTensor("other") ? call.Tensor("other") : nullptr;
  if (!tensor && other == nullptr) {
    call.Throw("expected a tensor among self and other");
  }
  Value* self = tensor ? call.Tensor("self") : Operand(call, "self", other);
  const Pair x = Promoted(call, self, Operand(call, "other", self));
  return {call.b().Select(condition, x.a, x.b)};
}

Values MaskedFill(AtenCall& call) {
  Value* self = call.Tensor("self");
  Value* value =
      call.b().Cast(Operand(call, "value", self), self->type().dtype);
  return {call.b().Select(AsBool(call, call.Tensor("mask")), value, self)};
}

Values Clamp(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  if (call.Has("min")) {
    const Pair low = Promoted(call, x, Operand(call, "min", x));
    x = b.Maximum(low.a, low.b);
  }
  if (call.Has("max")) {
    const Pair high = Promoted(call, x, Operand(call, "max", x));
    x = b.Minimum(high.a, high.b);
  }
  return {x};
}

Values Threshold(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  return {b.Select(b.Compare("gt", x, call.Number("threshold")), x,
                   b.ScalarLike(x, call.Number("value")))};
}

// x where |x| > lambda, else 0.
Values Hardshrink(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  Value* kept = b.Compare("gt", b.Abs(x), call.Number("lambd", 0.5));
  return {b.Select(kept, x, b.Zeros(x->type()))};
}

Values LogSigmoid(AtenCall& call) {
  Builder& b = call.b();
  return {b.Neg(b.Softplus(b.Neg(call.Tensor("self"))))};
}

// Multiplies the first half by the sigmoid of the second half.
Values Glu(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  const auto dim = static_cast<size_t>(DimArgument(call, x, "dim", -1));
  Shape middle = ShapeOf(x);
  if (middle[dim] % 2 != 0) {
    call.Throw("expected an even extent, got " + ToString(x->type()));
  }
  middle[dim] /= 2;
  std::vector<int64_t> start(middle.size(), 0);
  Value* first = b.Slice(x, start, middle);
  start[dim] = middle[dim];
  return {b.Times(first, b.Sigmoid(b.Slice(x, start, ShapeOf(x))))};
}

// The gradient at both limits is 0.
Values Hardtanh(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  const double low = call.Number("min_val", -1);
  const double high = call.Number("max_val", 1);
  if (low == 0 && high == 6) return {b.Relu6(x)};
  Value* inside = b.And(b.Compare("gt", x, low), b.Compare("lt", x, high));
  return {b.Select(inside, x, b.StopGradient(b.Clamp(x, low, high)))};
}

// The gradient passes at -3 and 3, as in PyTorch.
Values Hardswish(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  return {b.Divide(b.Times(x, b.Clamp(b.Plus(x, 3.0), 0, 6)), 6.0)};
}
// The gradient at -3 and 3 is 0, as in PyTorch.
Values Hardsigmoid(AtenCall& call) {
  Builder& b = call.b();
  return {b.Divide(b.Relu6(b.Plus(call.Tensor("self"), 3.0)), 6.0)};
}

Values Gelu(AtenCall& call) {
  const std::string approximate = call.Text("approximate", "none");
  Value* x = call.Tensor("self");
  return {approximate == "none" ? call.b().Gelu(x) : call.b().GeluTanh(x)};
}

Values LeakyRelu(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  const double slope = call.Number("negative_slope", 0.01);
  return {b.Select(b.Compare("gt", x, 0.0), x, b.Times(x, slope))};
}

// Computes scale x for positive x, else scale alpha (exp(input_scale x) - 1).
Values Exponential(AtenCall& call, double alpha, double scale,
                   double input_scale) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  Value* e = b.Exp(b.Times(b.Minimum(x, 0.0), input_scale));
  Value* negative = b.Times(b.Minus(e, 1.0), alpha * scale);
  return {b.Select(b.Compare("gt", x, 0.0), b.Times(x, scale), negative)};
}
Values Elu(AtenCall& call) {
  return Exponential(call, call.Number("alpha", 1), call.Number("scale", 1),
                     call.Number("input_scale", 1));
}
Values Celu(AtenCall& call) {
  const double alpha = call.Number("alpha", 1);
  if (alpha == 0) call.Throw("alpha: expected another number than 0");
  return Exponential(call, alpha, 1, 1 / alpha);
}

// Constants of Klambauer et al. 2017, as in ATen.
Values Selu(AtenCall& call) {
  return Exponential(call, 1.6732632423543772848, 1.0507009873554804934, 1);
}

Values Softplus(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  const double beta = call.Number("beta", 1);
  const double threshold = call.Number("threshold", 20);
  Value* linear = b.Compare("gt", b.Times(x, beta), threshold);
  return {b.Select(linear, x, b.Softplus(x, beta))};
}

Values Mish(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  return {b.Times(x, b.Tanh(b.Softplus(x)))};
}

constexpr AtenOp kElementwiseOps[] = {
    {"abs.default", Keeping<&Builder::Abs>},
    {"addcdiv.default", AddCombined<&Builder::Divide>},
    {"addcmul.default", AddCombined<&Builder::Times>},
    {"add.Tensor", WithAlpha<&Builder::Plus>},
    {"add.Scalar", WithAlpha<&Builder::Plus>},
    {"__and__.Tensor", Bitwise<And, &Builder::BitwiseAnd>},
    {"__lshift__.Scalar", Shift<true>},
    {"__lshift__.Tensor", Shift<true>},
    {"__or__.Tensor", Bitwise<Or, &Builder::BitwiseOr>},
    {"__rshift__.Scalar", Shift<false>},
    {"__rshift__.Tensor", Shift<false>},
    {"__xor__.Tensor", Bitwise<Xor, &Builder::BitwiseXor>},
    {"bitwise_and.Scalar", Bitwise<And, &Builder::BitwiseAnd>},
    {"bitwise_and.Tensor", Bitwise<And, &Builder::BitwiseAnd>},
    {"bitwise_left_shift.Tensor", Shift<true>},
    {"bitwise_left_shift.Tensor_Scalar", Shift<true>},
    {"bitwise_not.default", BitwiseNot},
    {"bitwise_or.Scalar", Bitwise<Or, &Builder::BitwiseOr>},
    {"bitwise_or.Tensor", Bitwise<Or, &Builder::BitwiseOr>},
    {"bitwise_right_shift.Tensor", Shift<false>},
    {"bitwise_right_shift.Tensor_Scalar", Shift<false>},
    {"bitwise_xor.Scalar", Bitwise<Xor, &Builder::BitwiseXor>},
    {"bitwise_xor.Tensor", Bitwise<Xor, &Builder::BitwiseXor>},
    {"ceil.default", Ceil},
    {"celu.default", Celu},
    {"cos.default", Function<&Builder::Cos>},
    {"clamp.Tensor", Clamp},
    {"clamp.default", Clamp},
    {"clamp_max.Tensor", Clamp},
    {"clamp_max.default", Clamp},
    {"clamp_min.Tensor", Clamp},
    {"clamp_min.default", Clamp},
    {"deg2rad.default", Radians},
    {"div.Tensor", Div},
    {"div.Scalar", Div},
    {"div.Tensor_mode", Div},
    {"div.Scalar_mode", Div},
    {"elu.default", Elu},
    {"eq.Scalar", Compare<'e', 'q'>},
    {"eq.Tensor", Compare<'e', 'q'>},
    {"erf.default", Function<&Builder::Erf>},
    {"exp2.default", Exp2},
    {"exp.default", Function<&Builder::Exp>},
    {"floor.default", Function<&Builder::Floor>},
    {"floor_divide.default", FloorDivide},
    {"floor_divide.Scalar", FloorDivide},
    {"fmod.Scalar", Fmod},
    {"fmod.Tensor", Fmod},
    {"ge.Scalar", Compare<'g', 'e'>},
    {"ge.Tensor", Compare<'g', 'e'>},
    {"gelu.default", Gelu},
    {"glu.default", Glu},
    {"gt.Scalar", Compare<'g', 't'>},
    {"gt.Tensor", Compare<'g', 't'>},
    {"hardshrink.default", Hardshrink},
    {"hardsigmoid.default", Hardsigmoid},
    {"hardswish.default", Hardswish},
    {"hardtanh.default", Hardtanh},
    {"le.Scalar", Compare<'l', 'e'>},
    {"le.Tensor", Compare<'l', 'e'>},
    {"leaky_relu.default", LeakyRelu},
    {"log10.default", Log10},
    {"log2.default", Log2},
    {"log_sigmoid.default", LogSigmoid},
    {"log.default", Function<&Builder::Log>},
    {"logical_and.default", And},
    {"logical_not.default", Not},
    {"logical_or.default", Or},
    {"logical_xor.default", Xor},
    {"lt.Scalar", Compare<'l', 't'>},
    {"lt.Tensor", Compare<'l', 't'>},
    {"masked_fill.Scalar", MaskedFill},
    {"masked_fill.Tensor", MaskedFill},
    {"max.other", Arithmetic<&Builder::Maximum>},
    {"maximum.default", Arithmetic<&Builder::Maximum>},
    {"min.other", Arithmetic<&Builder::Minimum>},
    {"minimum.default", Arithmetic<&Builder::Minimum>},
    {"mish.default", Mish},
    {"mul.Scalar", Arithmetic<&Builder::Times>},
    {"mul.Tensor", Arithmetic<&Builder::Times>},
    {"ne.Scalar", Compare<'n', 'e'>},
    {"ne.Tensor", Compare<'n', 'e'>},
    {"neg.default", Keeping<&Builder::Neg>},
    {"pow.Tensor_Scalar", PowScalar},
    {"pow.Tensor_Tensor", PowTensor},
    {"rad2deg.default", Degrees},
    {"reciprocal.default", Reciprocal},
    {"relu.default", Keeping<&Builder::Relu>},
    {"relu6.default", Function<&Builder::Relu6>},
    {"remainder.Scalar", Arithmetic<&Builder::Remainder>},
    {"remainder.Tensor", Arithmetic<&Builder::Remainder>},
    {"rsqrt.default", Function<&Builder::Rsqrt>},
    {"rsub.Scalar", Rsub},
    {"rsub.Tensor", Rsub},
    {"selu.default", Selu},
    {"sigmoid.default", Function<&Builder::Sigmoid>},
    {"silu.default", Function<&Builder::Silu>},
    {"sin.default", Function<&Builder::Sin>},
    {"softplus.default", Softplus},
    {"sqrt.default", Function<&Builder::Sqrt>},
    {"sub.Scalar", WithAlpha<&Builder::Minus>},
    {"sub.Tensor", WithAlpha<&Builder::Minus>},
    {"tanh.default", Function<&Builder::Tanh>},
    {"threshold.default", Threshold},
    {"trunc.default", Trunc},
    {"where.ScalarOther", Where},
    {"where.ScalarSelf", Where},
    {"where.self", Where},
};

}  // namespace

std::span<const AtenOp> AtenElementwiseOps() { return kElementwiseOps; }

}  // namespace fusor::models
