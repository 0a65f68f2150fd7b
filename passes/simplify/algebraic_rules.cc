#include "passes/simplify/algebraic_rules.h"

#include <algorithm>
#include <cmath>

#include "ir/op.h"
#include "passes/simplify/constant_folding.h"

namespace fusor::passes {
namespace {

using ir::DType;
using ir::Node;
using ir::OpKind;
using ir::ScalarOp;
using ir::TensorType;
using ir::Value;
using Result = std::optional<Replacement>;
using Ints = std::vector<int64_t>;

Result Existing(Value* value) {
  Replacement replacement;
  replacement.value = value;
  return replacement;
}

Result Made(const Node& like, std::vector<Value*> inputs, ir::Attrs attrs) {
  Replacement replacement;
  replacement.op = like.kind();
  replacement.inputs = std::move(inputs);
  replacement.attrs = std::move(attrs);
  return replacement;
}

Result Splat(const Node& node, std::optional<double> x) {
  if (!x) return std::nullopt;
  Replacement replacement;
  replacement.op = OpKind::kConstant;
  replacement.attrs = SplatAttrs(node.output()->type(), *x);
  return replacement;
}

bool IsZero(const Value& value, bool negative) {
  const auto x = SplatOf(value);
  if (!x || *x != 0) return false;
  return !ir::IsFloat(value.type().dtype) || std::signbit(*x) == negative;
}

bool IsSplatOf(const Value& value, double x) { return SplatOf(value) == x; }

// --- Elementwise -------------------------------------------------------------

// Returns the producer of operand `i` if it applies the scalar function `op`.
const Node* ProducerWith(const Node& node, size_t i, ScalarOp op) {
  const Node* producer = node.input(i)->producer();
  const bool same = producer != nullptr &&
                    producer->op().fusion == ir::FusionKind::kElementwise &&
                    ir::NodeScalar(*producer) == op;
  return same ? producer : nullptr;
}

// Returns true if `to` can represent every value of `from`.
bool Includes(DType to, DType from) {
  struct Range {
    int precision;  // bits of significand, or of an integer's magnitude
    int exponent;   // 2^exponent is out of range
    int lowest;     // 2^lowest is the smallest subnormal
    bool is_signed;
  };
  const auto range = [](DType dtype) -> Range {
    switch (dtype) {
      case DType::kF64:
        return {53, 1024, -1074, true};
      case DType::kF32:
        return {24, 128, -149, true};
      case DType::kF16:
        return {11, 16, -24, true};
      case DType::kBF16:
        return {8, 128, -133, true};
      case DType::kI64:
        return {63, 63, 0, true};
      case DType::kI32:
        return {31, 31, 0, true};
      case DType::kU8:
        return {8, 8, 0, false};
      case DType::kBool:
        return {1, 1, 0, false};
    }
    return {};
  };
  if (to == from) return true;
  if (ir::IsFloat(from) && !ir::IsFloat(to)) return false;
  const Range a = range(to);
  const Range b = range(from);
  return a.precision >= b.precision && a.exponent >= b.exponent &&
         a.lowest <= b.lowest && (a.is_signed || !b.is_signed);
}

// Removes a cast to the same dtype. Of two consecutive casts, removes the first
// if it is lossless. Leaves stop_gradient, which has no gradient rule, to
// Autodiff.
Result SimplifyIdentity(const Node& node) {
  if (node.op().gradient == nullptr) return std::nullopt;
  if (node.input(0)->type() == node.output()->type()) {
    return Existing(node.input(0));
  }
  const Node* inner = ProducerWith(node, 0, ScalarOp::kIdentity);
  if (inner == nullptr || inner->op().gradient == nullptr) return std::nullopt;
  Value* source = inner->input(0);
  if (!Includes(inner->output()->type().dtype, source->type().dtype)) {
    return std::nullopt;
  }
  return Made(node, {source}, node.attrs());
}

// f(f(x)) = x for an `involution`, otherwise f(f(x)) = f(x).
Result SimplifyRepeated(const Node& node, bool involution) {
  const Node* inner = ProducerWith(node, 0, ir::NodeScalar(node));
  if (inner == nullptr) return std::nullopt;
  return Existing(involution ? inner->input(0) : node.input(0));
}

Result SimplifyAbs(const Node& node) {
  if (const Node* neg = ProducerWith(node, 0, ScalarOp::kNeg)) {
    return Made(node, {neg->input(0)}, node.attrs());
  }
  return SimplifyRepeated(node, false);
}

// x + 0 differs from x if x is -0, but x + -0 equals x.
Result SimplifyAdd(const Node& node) {
  if (IsZero(*node.input(1), true)) return Existing(node.input(0));
  if (IsZero(*node.input(0), true)) return Existing(node.input(1));
  return std::nullopt;
}

Result SimplifySub(const Node& node) {
  if (IsZero(*node.input(1), false)) return Existing(node.input(0));
  return std::nullopt;
}

// x * 1 = x. x * 0 is not 0 for an infinite x.
Result SimplifyMul(const Node& node) {
  if (IsSplatOf(*node.input(1), 1)) return Existing(node.input(0));
  if (IsSplatOf(*node.input(0), 1)) return Existing(node.input(1));
  return std::nullopt;
}

Result SimplifyDivOrPow(const Node& node) {
  if (IsSplatOf(*node.input(1), 1)) return Existing(node.input(0));
  return std::nullopt;
}

Result SimplifyExtremum(const Node& node) {
  if (node.input(0) == node.input(1)) return Existing(node.input(0));
  return std::nullopt;
}

// Simplifies a logical op with a constant operand. `neutral` is the op's
// identity element: true for kAnd, false for kOr. The other constant is the
// result.
Result SimplifyLogical(const Node& node, bool neutral) {
  for (size_t i = 0; i < 2; ++i) {
    const auto splat = SplatOf(*node.input(i));
    if (!splat) continue;
    return Existing(node.input((*splat != 0) == neutral ? 1 - i : i));
  }
  return SimplifyExtremum(node);
}

Result SimplifySelect(const Node& node) {
  Value* predicate = node.input(0);
  if (const auto splat = SplatOf(*predicate)) {
    return Existing(node.input(*splat != 0 ? 1 : 2));
  }
  if (node.input(1) == node.input(2)) return Existing(node.input(1));
  if (const Node* inverted = ProducerWith(node, 0, ScalarOp::kNot)) {
    return Made(node, {inverted->input(0), node.input(2), node.input(1)},
                node.attrs());
  }
  return std::nullopt;
}

Result SimplifyElementwise(const Node& node) {
  switch (ir::NodeScalar(node)) {
    case ScalarOp::kIdentity:
      return SimplifyIdentity(node);
    case ScalarOp::kNeg:
    case ScalarOp::kNot:
      return SimplifyRepeated(node, true);
    case ScalarOp::kRelu:
    case ScalarOp::kFloor:
      return SimplifyRepeated(node, false);
    case ScalarOp::kAbs:
      return SimplifyAbs(node);
    case ScalarOp::kAdd:
      return SimplifyAdd(node);
    case ScalarOp::kSub:
      return SimplifySub(node);
    case ScalarOp::kMul:
      return SimplifyMul(node);
    case ScalarOp::kDiv:
    case ScalarOp::kPow:
      return SimplifyDivOrPow(node);
    case ScalarOp::kMaximum:
    case ScalarOp::kMinimum:
      return SimplifyExtremum(node);
    case ScalarOp::kAnd:
      return SimplifyLogical(node, true);
    case ScalarOp::kOr:
      return SimplifyLogical(node, false);
    case ScalarOp::kSelect:
      return SimplifySelect(node);
    default:
      return std::nullopt;
  }
}

// --- Shape -------------------------------------------------------------------

// Returns the producer of the operand if it is the same op as `node`.
const Node* ProducerAlike(const Node& node) {
  const Node* producer = node.input(0)->producer();
  const bool same = producer != nullptr && &producer->op() == &node.op();
  return same ? producer : nullptr;
}

// Removes a reshape or copy to the operand's own type. Of two consecutive
// reshapes or copies, keeps only the later.
Result SimplifyLastOneWins(const Node& node) {
  if (node.input(0)->type() == node.output()->type()) {
    return Existing(node.input(0));
  }
  const Node* inner = ProducerAlike(node);
  if (inner == nullptr) return std::nullopt;
  return Made(node, {inner->input(0)}, node.attrs());
}

// A broadcast constant has the same elements in every layout.
Result SimplifyCopy(const Node& node) {
  if (Result splat = Splat(node, SplatAttribute(*node.input(0)))) return splat;
  const Node* inner = ProducerAlike(node);
  const bool rounds = inner != nullptr && inner->input(0)->type().dtype !=
                                              inner->output()->type().dtype;
  return rounds ? std::nullopt : SimplifyLastOneWins(node);
}

Result SimplifyBroadcast(const Node& node) {
  if (node.input(0)->type() == node.output()->type()) {
    return Existing(node.input(0));
  }
  const Node* inner = ProducerAlike(node);
  if (inner == nullptr) return std::nullopt;
  Ints dims;
  for (int64_t dim : inner->attrs().Ints("dims")) {
    dims.push_back(node.attrs().Ints("dims")[dim]);
  }
  ir::Attrs attrs = node.attrs();
  attrs.Set("dims", dims);
  return Made(node, {inner->input(0)}, attrs);
}

Result SimplifyTranspose(const Node& node) {
  const Ints& permutation = node.attrs().Ints("permutation");
  if (std::is_sorted(permutation.begin(), permutation.end())) {
    return Existing(node.input(0));
  }
  const Node* inner = ProducerAlike(node);
  if (inner == nullptr) return std::nullopt;
  Ints composed;
  for (int64_t dim : permutation) {
    composed.push_back(inner->attrs().Ints("permutation")[dim]);
  }
  return Made(node, {inner->input(0)}, {{"permutation", composed}});
}

Result SimplifySlice(const Node& node) {
  if (node.output()->type().shape == node.input(0)->type().shape) {
    return Existing(node.input(0));
  }
  const Node* inner = ProducerAlike(node);
  if (inner == nullptr) return std::nullopt;
  Ints start, limit, stride;
  for (size_t i = 0; i < node.output()->type().rank(); ++i) {
    const int64_t step = inner->attrs().Ints("stride")[i];
    start.push_back(inner->attrs().Ints("start")[i] +
                    node.attrs().Ints("start")[i] * step);
    stride.push_back(node.attrs().Ints("stride")[i] * step);
    limit.push_back(start[i] +
                    (node.output()->type().shape[i] - 1) * stride[i] + 1);
  }
  return Made(node, {inner->input(0)},
              {{"start", start}, {"limit", limit}, {"stride", stride}});
}

Result SimplifyPad(const Node& node) {
  if (node.output()->type().shape != node.input(0)->type().shape) {
    return std::nullopt;
  }
  return Existing(node.input(0));
}

Result SimplifyConcat(const Node& node) {
  if (node.num_inputs() > 1) return std::nullopt;
  return Existing(node.input(0));
}

Result SimplifyShape(const Node& node) {
  switch (node.kind()) {
    case OpKind::kBroadcast:
      return SimplifyBroadcast(node);
    case OpKind::kConcat:
      return SimplifyConcat(node);
    case OpKind::kCopy:
      return SimplifyCopy(node);
    case OpKind::kPad:
      return SimplifyPad(node);
    case OpKind::kReshape:
      return SimplifyLastOneWins(node);
    case OpKind::kSlice:
      return SimplifySlice(node);
    case OpKind::kTranspose:
      return SimplifyTranspose(node);
    default:
      return std::nullopt;
  }
}

}  // namespace

std::optional<Replacement> FindReplacement(const Node& node) {
  if (node.num_outputs() != 1 || !node.HasTrait(ir::OpTrait::kPure))
    return std::nullopt;
  if (Result folded = Splat(node, FoldToSplat(node))) return folded;
  if (auto elements = FoldToElements(node)) {
    Replacement constant;
    constant.op = OpKind::kConstant;
    constant.attrs = std::move(*elements);
    return constant;
  }
  const Result found = node.op().fusion == ir::FusionKind::kElementwise
                           ? SimplifyElementwise(node)
                           : SimplifyShape(node);
  if (found && found->value != nullptr &&
      !(found->value->type() == node.output()->type())) {
    return std::nullopt;
  }
  return found;
}

}  // namespace fusor::passes
