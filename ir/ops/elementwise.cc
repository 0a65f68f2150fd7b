#include <cmath>

#include "ir/builder.h"
#include "ir/ops/families.h"
#include "ir/support/error.h"

namespace fusor::ir {
namespace {

using Types = std::span<const TensorType>;
using Grads = std::vector<Value*>;
using DOutputs = std::span<Value* const>;

void CheckSameShape(Types in) {
  for (const TensorType& type : in) {
    FUSOR_CHECK(type.shape == in[0].shape && type.layout == in[0].layout,
                kGraph, "expected operands of one shape and layout");
  }
}

std::vector<TensorType> InferSame(Types in, const Attrs&) {
  CheckSameShape(in);
  for (const TensorType& type : in) {
    FUSOR_CHECK(type.dtype == in[0].dtype, kGraph,
                "expected operands of one dtype");
  }
  return {in[0]};
}

std::vector<TensorType> InferFloat(Types in, const Attrs& attrs) {
  FUSOR_CHECK(IsFloat(in[0].dtype), kGraph, "expected a floating dtype");
  return InferSame(in, attrs);
}

std::vector<TensorType> InferInteger(Types in, const Attrs& attrs) {
  FUSOR_CHECK(!IsFloat(in[0].dtype) && in[0].dtype != DType::kBool, kGraph,
              "expected an integer dtype, got {}", DTypeName(in[0].dtype));
  return InferSame(in, attrs);
}

std::vector<TensorType> InferNumber(Types in, const Attrs& attrs) {
  FUSOR_CHECK(in[0].dtype != DType::kBool, kGraph, "expected numbers, got {}",
              DTypeName(in[0].dtype));
  return InferSame(in, attrs);
}

std::vector<TensorType> InferLogical(Types in, const Attrs& attrs) {
  FUSOR_CHECK(in[0].dtype == DType::kBool, kGraph, "expected bool operands");
  return InferSame(in, attrs);
}

std::vector<TensorType> InferPredicate(Types in, const Attrs& attrs) {
  TensorType type = InferSame(in, attrs)[0];
  type.dtype = DType::kBool;
  return {type};
}

std::vector<TensorType> InferCast(Types in, const Attrs& attrs) {
  const auto dtype = ParseDType(attrs.String("dtype"));
  FUSOR_CHECK(dtype.has_value(), kGraph, "unknown dtype {}",
              attrs.String("dtype"));
  TensorType type = in[0];
  type.dtype = *dtype;
  return {type};
}

std::vector<TensorType> InferSelect(Types in, const Attrs&) {
  CheckSameShape(in);
  FUSOR_CHECK(in[0].dtype == DType::kBool, kGraph, "expected a bool predicate");
  FUSOR_CHECK(in[1].dtype == in[2].dtype, kGraph,
              "expected both choices of one dtype");
  return {in[1]};
}

template <ScalarOp op>
ScalarOp Fixed(const Attrs&) {
  return op;
}

ScalarOp CompareDirection(const Attrs& attrs) {
  const auto op = ParseScalarOp(attrs.String("direction"));
  FUSOR_CHECK(op.has_value() && IsComparison(*op), kGraph,
              "direction {}: expected eq, ne, lt, le, gt or ge",
              attrs.String("direction"));
  return *op;
}

std::vector<TensorType> InferCompare(Types in, const Attrs& attrs) {
  CompareDirection(attrs);
  return InferPredicate(in, attrs);
}

// --- Gradients: x operand, y result, dy its gradient -------------------------

Grads GradNeg(Builder& b, const Node&, DOutputs d) { return {b.Neg(d[0])}; }
Grads GradAbs(Builder& b, const Node& n, DOutputs d) {
  // The sign; 0 at 0 as in PyTorch.
  Value* zero = b.Zeros(d[0]->type());
  Value* negative = b.Compare("lt", n.input(0), 0.0);
  Value* positive = b.Compare("gt", n.input(0), 0.0);
  return {b.Select(positive, d[0], b.Select(negative, b.Neg(d[0]), zero))};
}
Grads GradExp(Builder& b, const Node& n, DOutputs d) {
  return {b.Times(d[0], n.output())};
}
Grads GradLog(Builder& b, const Node& n, DOutputs d) {
  return {b.Divide(d[0], n.input(0))};
}
Grads GradSqrt(Builder& b, const Node& n, DOutputs d) {
  return {b.Divide(b.Times(d[0], 0.5), n.output())};
}
Grads GradRsqrt(Builder& b, const Node& n, DOutputs d) {
  Value* y = n.output();
  return {b.Times(b.Times(d[0], -0.5), b.Times(y, b.Times(y, y)))};
}
Grads GradTanh(Builder& b, const Node& n, DOutputs d) {
  Value* y = n.output();
  return {b.Minus(d[0], b.Times(d[0], b.Times(y, y)))};
}
Grads GradSin(Builder& b, const Node& n, DOutputs d) {
  return {b.Times(d[0], b.Cos(n.input(0)))};
}
Grads GradCos(Builder& b, const Node& n, DOutputs d) {
  return {b.Neg(b.Times(d[0], b.Sin(n.input(0))))};
}
Grads GradErf(Builder& b, const Node& n, DOutputs d) {
  Value* x = n.input(0);
  return {
      b.Times(b.Times(d[0], 2 / std::sqrt(M_PI)), b.Exp(b.Neg(b.Times(x, x))))};
}
Grads GradRelu(Builder& b, const Node& n, DOutputs d) {
  // Uses the result, so that the operand need not be kept.
  return {ReluGradient(b, n.output(), d[0])};
}
Grads GradCast(Builder& b, const Node& n, DOutputs d) {
  const DType dtype = n.input(0)->type().dtype;
  if (!IsFloat(dtype)) return {nullptr};
  return {b.Cast(d[0], dtype)};
}
Grads GradAdd(Builder&, const Node&, DOutputs d) { return {d[0], d[0]}; }
Grads GradSub(Builder& b, const Node&, DOutputs d) {
  return {d[0], b.Neg(d[0])};
}
Grads GradMul(Builder& b, const Node& n, DOutputs d) {
  return {b.Times(d[0], n.input(1)), b.Times(d[0], n.input(0))};
}
Grads GradDiv(Builder& b, const Node& n, DOutputs d) {
  Value* quotient = b.Divide(d[0], n.input(1));
  return {quotient, b.Neg(b.Times(quotient, n.output()))};
}
// x - y floor(x / y), where floor is constant.
Grads GradRemainder(Builder& b, const Node& n, DOutputs d) {
  Value* floor = b.Floor(b.Divide(n.input(0), n.input(1)));
  return {d[0], b.Neg(b.Times(d[0], floor))};
}
// If both are equal, the first operand gets the whole gradient.
Grads GradExtremum(Builder& b, const Node& n, DOutputs d) {
  Value* first = b.Compare("eq", n.input(0), n.output());
  Value* zero = b.Zeros(d[0]->type());
  return {b.Select(first, d[0], zero), b.Select(first, zero, d[0])};
}
Grads GradPow(Builder& b, const Node& n, DOutputs d) {
  Value* x = n.input(0);
  Value* p = n.input(1);
  Value* zero = b.Zeros(d[0]->type());
  Value* dx = b.Times(b.Times(d[0], p), b.Pow(x, b.Minus(p, 1.0)));
  Value* dp = b.Times(b.Times(d[0], n.output()), b.Log(x));
  // x^0 and 0^p are constant, where the formulas give 0 * infinity.
  Value* flat = b.And(b.Compare("eq", x, 0.0), b.Compare("ge", p, 0.0));
  return {b.Select(b.Compare("eq", p, 0.0), zero, dx),
          b.Select(flat, zero, dp)};
}
Grads GradSelect(Builder& b, const Node& n, DOutputs d) {
  Value* zero = b.Zeros(d[0]->type());
  return {nullptr, b.Select(n.input(0), d[0], zero),
          b.Select(n.input(0), zero, d[0])};
}

using Infer = decltype(OpDef::infer);
using Gradient = decltype(OpDef::gradient);

OpDef Row(OpKind kind, std::string_view name, std::string_view summary,
          int arity, PrecisionRule precision, Infer infer,
          decltype(OpDef::scalar) scalar, Gradient gradient,
          std::vector<AttrSpec> attrs = {}) {
  OpDef op;
  op.kind = kind;
  op.name = name;
  op.summary = summary;
  op.min_inputs = op.max_inputs = arity;
  op.fusion = FusionKind::kElementwise;
  op.precision = precision;
  op.layout = LayoutRule::kSame;
  op.attrs = std::move(attrs);
  op.infer = infer;
  op.scalar = scalar;
  op.gradient = gradient;
  return op;
}

std::vector<OpDef> MakeElementwiseOps() {
  using enum PrecisionRule;
  using K = OpKind;
  using S = ScalarOp;
  return {
      Row(K::kNeg, "neg", "-x", 1, kFollow, InferSame, Fixed<S::kNeg>, GradNeg),
      Row(K::kAbs, "abs", "|x|", 1, kFollow, InferSame, Fixed<S::kAbs>,
          GradAbs),
      Row(K::kExp, "exp", "e^x", 1, kDeny, InferFloat, Fixed<S::kExp>, GradExp),
      Row(K::kLog, "log", "natural logarithm", 1, kDeny, InferFloat,
          Fixed<S::kLog>, GradLog),
      Row(K::kSqrt, "sqrt", "square root", 1, kDeny, InferFloat,
          Fixed<S::kSqrt>, GradSqrt),
      Row(K::kRsqrt, "rsqrt", "1 / sqrt(x)", 1, kDeny, InferFloat,
          Fixed<S::kRsqrt>, GradRsqrt),
      Row(K::kTanh, "tanh", "hyperbolic tangent", 1, kInfer, InferFloat,
          Fixed<S::kTanh>, GradTanh),
      Row(K::kSin, "sin", "sine of radians", 1, kDeny, InferFloat,
          Fixed<S::kSin>, GradSin),
      Row(K::kCos, "cos", "cosine of radians", 1, kDeny, InferFloat,
          Fixed<S::kCos>, GradCos),
      Row(K::kErf, "erf", "error function", 1, kInfer, InferFloat,
          Fixed<S::kErf>, GradErf),
      Row(K::kFloor, "floor", "largest integer not above x", 1, kFollow,
          InferFloat, Fixed<S::kFloor>, nullptr),
      Row(K::kRelu, "relu", "maximum(x, 0)", 1, kFollow, InferSame,
          Fixed<S::kRelu>, GradRelu),
      Row(K::kNot, "not", "logical negation of bool", 1, kFollow, InferLogical,
          Fixed<S::kNot>, nullptr),
      Row(K::kIsFinite, "is_finite", "neither infinite nor NaN; bool", 1, kDeny,
          InferPredicate, Fixed<S::kIsFinite>, nullptr),
      Row(K::kStopGradient, "stop_gradient", "x, a constant to differentiation",
          1, kFollow, InferSame, Fixed<S::kIdentity>, nullptr),
      Row(K::kCast, "cast", "x in another dtype", 1, kFollow, InferCast,
          Fixed<S::kIdentity>, GradCast, {{"dtype", std::string("f32"), true}}),
      Row(K::kAdd, "add", "a + b", 2, kInfer, InferSame, Fixed<S::kAdd>,
          GradAdd),
      Row(K::kSub, "sub", "a - b", 2, kInfer, InferSame, Fixed<S::kSub>,
          GradSub),
      Row(K::kMul, "mul", "a * b", 2, kInfer, InferSame, Fixed<S::kMul>,
          GradMul),
      Row(K::kDiv, "div", "a / b", 2, kInfer, InferFloat, Fixed<S::kDiv>,
          GradDiv),
      Row(K::kMaximum, "maximum", "the greater; NaN if either is", 2, kFollow,
          InferSame, Fixed<S::kMaximum>, GradExtremum),
      Row(K::kMinimum, "minimum", "the smaller; NaN if either is", 2, kFollow,
          InferSame, Fixed<S::kMinimum>, GradExtremum),
      Row(K::kPow, "pow", "a to the power of b", 2, kDeny, InferFloat,
          Fixed<S::kPow>, GradPow),
      Row(K::kFloorDiv, "floor_div", "floor(a / b) of integers; 0 if b is 0", 2,
          kFollow, InferInteger, Fixed<S::kFloorDiv>, nullptr),
      Row(K::kRemainder, "remainder",
          "a - b floor(a / b), exact; of integers 0 if b is 0", 2, kDeny,
          InferNumber, Fixed<S::kRemainder>, GradRemainder),
      Row(K::kBitwiseAnd, "bitwise_and", "a & b of integers", 2, kFollow,
          InferInteger, Fixed<S::kBitwiseAnd>, nullptr),
      Row(K::kBitwiseOr, "bitwise_or", "a | b of integers", 2, kFollow,
          InferInteger, Fixed<S::kBitwiseOr>, nullptr),
      Row(K::kBitwiseXor, "bitwise_xor", "a ^ b of integers", 2, kFollow,
          InferInteger, Fixed<S::kBitwiseXor>, nullptr),
      Row(K::kAnd, "and", "logical and of bool", 2, kFollow, InferLogical,
          Fixed<S::kAnd>, nullptr),
      Row(K::kOr, "or", "logical or of bool", 2, kFollow, InferLogical,
          Fixed<S::kOr>, nullptr),
      Row(K::kCompare, "compare", "a <direction> b; bool", 2, kFollow,
          InferCompare, CompareDirection, nullptr,
          {{"direction", std::string("eq"), true}}),
      Row(K::kSelect, "select", "predicate ? a : b", 3, kFollow, InferSelect,
          Fixed<S::kSelect>, GradSelect),
  };
}

}  // namespace

Value* ReluGradient(Builder& b, Value* y, Value* dy) {
  return b.Select(b.Compare("gt", y, 0.0), dy, b.Zeros(dy->type()));
}

std::span<const OpDef> ElementwiseOps() {
  static const std::vector<OpDef> ops = MakeElementwiseOps();
  return ops;
}

}  // namespace fusor::ir
