// One sweep visits the nodes in order. Operands are already simplified when a
// node is visited, so local rules (algebraic_rules.h) apply until none matches.
// The result is then looked up among the nodes kept so far. A node created by a
// rule takes the position and the name of the one it replaces. Rules read
// operands only, so a second sweep finds nothing and the work is linear in the
// size of the graph.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ir/op.h"
#include "ir/support/error.h"
#include "ir/support/hash.h"
#include "passes/passes.h"
#include "passes/simplify/algebraic_rules.h"
#include "passes/simplify/dead_code.h"

namespace fusor::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::ScalarOp;

constexpr int kMaxSweeps = 16;
constexpr int kMaxRewritesOfANode = 64;
constexpr char kSimplifyPass[] = "simplify";

// --- Value numbering ---------------------------------------------------------

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

// Finds nodes that compute the same value: equal op, attributes, operands and
// result types. Operands may be swapped if the op commutes exactly. Impure
// nodes and fusions equal no other node.
class ValueNumbering {
 public:
  // Returns an equal node inserted earlier, otherwise inserts and returns
  // `node`. The nodes must outlive the table and keep their operands.
  Node* FindOrInsert(Node* node);

 private:
  std::unordered_map<uint64_t, std::vector<Node*>> nodes_;  // by hash
};

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

// --- Sweeps ------------------------------------------------------------------

class Sweep {
 public:
  Sweep(Graph& graph, PassContext& context)
      : graph_(graph), context_(context) {}

  bool Run() {
    std::vector<Node*> nodes;
    for (const auto& node : graph_.nodes()) nodes.push_back(node.get());
    context_.counters()["simplify_visits"] +=
        static_cast<int64_t>(nodes.size());
    for (Node* node : nodes) Visit(node);
    graph_.EraseAll(replaced_);
    if (!names_.empty()) graph_.Reorder(order_);
    for (auto& [node, name] : names_) {
      graph_.Rename(node->output(), std::move(name));
    }
    return !replaced_.empty();
  }

 private:
  void Visit(Node* node) {
    const std::string name = node->output()->name();
    Node* const original = node;
    for (int i = 0;; ++i) {
      FUSOR_ASSERT(i < kMaxRewritesOfANode, "{}: rewriting does not terminate",
                   name);
      const auto replacement = FindReplacement(*node);
      if (!replacement ||
          !context_.ConsumeFuel(kSimplifyPass, *node->output())) {
        break;
      }
      ir::Value* value = replacement->value;
      if (value == nullptr) value = Make(*node, *replacement);
      graph_.ReplaceAllUses(node->output(), value);
      replaced_.push_back(node);
      if (replacement->value != nullptr) return;
      node = value->producer();
    }
    Node* known = table_.FindOrInsert(node);
    if (known != node && context_.ConsumeFuel(kSimplifyPass, *node->output())) {
      for (size_t i = 0; i < node->num_outputs(); ++i) {
        graph_.ReplaceAllUses(node->output(i), known->output(i));
      }
      replaced_.push_back(node);
      return;
    }
    order_.push_back(node);
    if (node != original) names_.emplace_back(node, name);
  }

  ir::Value* Make(const Node& node, const Replacement& replacement) {
    Node* made = graph_.AddNode(replacement.op, replacement.inputs,
                                replacement.attrs, node.location());
    made->output()->set_type(node.output()->type());
    return made->output();
  }

  Graph& graph_;
  PassContext& context_;
  ValueNumbering table_;
  std::vector<Node*> order_;     // kept
  std::vector<Node*> replaced_;  // to erase
  std::vector<std::pair<Node*, std::string>> names_;
};

}  // namespace

bool Simplify(Graph& graph, PassContext& context) {
  bool changed = false;
  for (int i = 0; i < kMaxSweeps; ++i) {
    const bool swept = Sweep(graph, context).Run();
    const bool dropped = EraseDeadNodes(graph, context, kSimplifyPass);
    if (!swept && !dropped) return changed;
    changed = true;
  }
  FUSOR_ASSERT(false, "graph {}: no fixed point after {} iterations",
               graph.name(), kMaxSweeps);
}

}  // namespace fusor::passes
