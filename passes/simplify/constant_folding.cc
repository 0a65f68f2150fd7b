#include "passes/simplify/constant_folding.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "ir/interpreter/interpreter.h"
#include "ir/op.h"

namespace fusor::passes {
namespace {

using ir::Node;
using ir::ScalarOp;

// Integers above this are not exact in the interpreter's arithmetic.
constexpr double kExactIntegers = 0x1p53;
// A larger constant takes memory and long lines of text.
constexpr int64_t kMostElements = 4096;

// Returns whether the op gives each element a place that it can have in memory.
// A broadcast is free within a kernel, but its result can be large.
bool MovesElements(const Node& node) {
  switch (node.kind()) {
    case ir::OpKind::kConcat:
    case ir::OpKind::kPad:
    case ir::OpKind::kReshape:
    case ir::OpKind::kSlice:
    case ir::OpKind::kTranspose:
      return true;
    default:
      return false;
  }
}

bool SameBits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

// Returns the one number in `values`, bit for bit; nullopt for NaN.
std::optional<double> CommonValue(const std::vector<double>& values) {
  const bool same = std::all_of(values.begin(), values.end(), [&](double x) {
    return SameBits(x, values[0]) && !std::isnan(x);
  });
  return same ? std::optional(values[0]) : std::nullopt;
}

std::optional<double> Representable(ir::DType dtype, double x) {
  if (std::isnan(x)) return std::nullopt;
  const double rounded = ir::RoundTo(dtype, x);
  if (!ir::IsFloat(dtype)) {
    return std::fabs(x) <= kExactIntegers ? std::optional(rounded)
                                          : std::nullopt;
  }
  return SameBits(rounded, x) ? std::optional(x) : std::nullopt;
}

std::optional<double> FoldElementwise(const Node& node) {
  std::vector<double> operands;
  for (const ir::Value* input : node.inputs()) {
    const auto splat = SplatOf(*input);
    if (!splat) return std::nullopt;
    operands.push_back(*splat);
  }
  return Representable(node.output()->type().dtype,
                       ir::EvalScalar(ir::NodeScalar(node), operands));
}

// Every element of the result is an element of an operand, or the `value` that
// a pad inserts.
std::optional<double> FoldInjective(const Node& node) {
  std::vector<double> values;
  for (const ir::Value* input : node.inputs()) {
    const auto splat = SplatAttribute(*input);
    if (!splat) return std::nullopt;
    values.push_back(*splat);
  }
  if (node.kind() == ir::OpKind::kPad) {
    values.push_back(node.attrs().Float("value"));
  }
  return CommonValue(values);
}

// Folds sums only of integers that stay exact in any order and accumulator, and
// products only of ones.
std::optional<double> FoldReduce(const Node& node) {
  const auto x = SplatOf(*node.input(0));
  if (!x) return std::nullopt;
  const ir::TensorType& type = node.output()->type();
  const int64_t count =
      node.input(0)->type().num_elements() / type.num_elements();
  switch (ir::NodeScalar(node)) {
    case ScalarOp::kAdd: {
      const double sum = *x * static_cast<double>(count);
      if (std::trunc(*x) != *x || std::fabs(sum) > 0x1p24) return std::nullopt;
      return Representable(type.dtype, sum + 0.0);  // the sum of -0 is 0
    }
    case ScalarOp::kMul:
      return *x == 1 ? x : std::nullopt;
    case ScalarOp::kMaximum:
    case ScalarOp::kMinimum:
    case ScalarOp::kAnd:
    case ScalarOp::kOr:
      return x;
    default:
      return std::nullopt;
  }
}

}  // namespace

std::optional<double> SplatAttribute(const ir::Value& value) {
  const Node* node = value.producer();
  if (!IsOp(node, ir::OpKind::kConstant)) return std::nullopt;
  const std::vector<double>& values = node->attrs().Floats("value");
  if (values.size() != 1) return std::nullopt;
  return CommonValue(values);
}

std::optional<double> SplatOf(const ir::Value& value) {
  const auto x = SplatAttribute(value);
  return x ? Representable(value.type().dtype, *x) : std::nullopt;
}

ir::Attrs SplatAttrs(const ir::TensorType& type, double x) {
  return {{"dtype", std::string(ir::DTypeName(type.dtype))},
          {"shape", type.shape},
          {"value", std::vector<double>{x}}};
}

std::optional<double> FoldToSplat(const Node& node) {
  switch (node.op().fusion) {
    case ir::FusionKind::kElementwise:
      return FoldElementwise(node);
    case ir::FusionKind::kInjective:
      return FoldInjective(node);
    case ir::FusionKind::kReduce:
      return FoldReduce(node);
    case ir::FusionKind::kSource:
      if (node.kind() == ir::OpKind::kConstant &&
          node.attrs().Floats("value").size() > 1) {
        return CommonValue(node.attrs().Floats("value"));
      }
      return std::nullopt;
    case ir::FusionKind::kIndexed:
    case ir::FusionKind::kLibrary:
    case ir::FusionKind::kSeparate:
    case ir::FusionKind::kOpaque:
      return std::nullopt;
  }
  return std::nullopt;
}

std::optional<ir::Attrs> FoldToElements(const Node& node) {
  const ir::TensorType& type = node.output()->type();
  if (!MovesElements(node) || type.num_elements() > kMostElements ||
      !type.layout.is_row_major()) {
    return std::nullopt;
  }
  std::vector<ir::Tensor> operands;
  for (const ir::Value* input : node.inputs()) {
    const Node* producer = input->producer();
    if (!IsOp(producer, ir::OpKind::kConstant)) return std::nullopt;
    operands.push_back(
        InterpretNode(*producer, {}, ir::EvalMode::kExact).front());
  }
  std::vector<const ir::Tensor*> pointers;
  for (const ir::Tensor& operand : operands) pointers.push_back(&operand);
  ir::Tensor result =
      std::move(InterpretNode(node, pointers, ir::EvalMode::kExact).front());
  return ir::Attrs{{"dtype", std::string(ir::DTypeName(type.dtype))},
                   {"shape", type.shape},
                   {"value", std::move(result.data)}};
}

}  // namespace fusor::passes
