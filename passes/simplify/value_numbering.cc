#include "passes/simplify/value_numbering.h"

#include <algorithm>
#include <bit>

#include "ir/op.h"
#include "ir/support/hash.h"

namespace fusor::passes {
namespace {

using ir::Node;
using ir::ScalarOp;

// Returns true if swapped operands give a bit-identical result. Excludes
// maximum(0, -0), which depends on the order.
bool Commutes(const Node& node) {
  if (node.op().fusion != ir::FusionKind::kElementwise) return false;
  switch (ir::NodeScalar(node)) {
    case ScalarOp::kAdd:
    case ScalarOp::kMul:
    case ScalarOp::kAnd:
    case ScalarOp::kOr:
    case ScalarOp::kEq:
    case ScalarOp::kNe:
      return true;
    default:
      return false;
  }
}

uint64_t Number(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer);
}

struct AttrHash {
  uint64_t operator()(bool x) const { return x ? 1 : 2; }
  uint64_t operator()(int64_t x) const { return static_cast<uint64_t>(x); }
  uint64_t operator()(double x) const { return std::bit_cast<uint64_t>(x); }
  uint64_t operator()(const std::string& x) const { return HashBytes(x); }
  template <typename T>
  uint64_t operator()(const std::vector<T>& list) const {
    uint64_t hash = kHashSeed;
    for (const T& x : list) hash = HashCombine(hash, (*this)(x));
    return hash;
  }
};

uint64_t Hash(const Node& node) {
  uint64_t hash = HashCombine(kHashSeed, Number(&node.op()));
  for (const auto& [name, value] : node.attrs().values()) {
    hash = HashCombine(hash, std::visit(AttrHash(), value));
  }
  uint64_t operands = 0;
  for (const ir::Value* input : node.inputs()) {
    operands = Commutes(node) ? operands + HashCombine(kHashSeed, Number(input))
                              : HashCombine(operands, Number(input));
  }
  return HashCombine(hash, operands);
}

bool SameOperands(const Node& a, const Node& b) {
  if (a.inputs() == b.inputs()) return true;
  return Commutes(a) && a.input(0) == b.input(1) && a.input(1) == b.input(0);
}

bool SameResults(const Node& a, const Node& b) {
  if (a.num_outputs() != b.num_outputs()) return false;
  for (size_t i = 0; i < a.num_outputs(); ++i) {
    if (!(a.output(i)->type() == b.output(i)->type())) return false;
  }
  return true;
}

}  // namespace

Node* ValueNumbering::FindOrInsert(Node* node) {
  if (!node->HasTrait(ir::OpTrait::kPure) || node->body() != nullptr)
    return node;
  std::vector<Node*>& alike = nodes_[Hash(*node)];
  const auto found =
      std::find_if(alike.begin(), alike.end(), [&](const Node* other) {
        return &other->op() == &node->op() && other->attrs() == node->attrs() &&
               SameOperands(*other, *node) && SameResults(*other, *node);
      });
  if (found != alike.end()) return *found;
  alike.push_back(node);
  return node;
}

}  // namespace fusor::passes
