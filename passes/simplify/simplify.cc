// One sweep visits the nodes in order. Operands are already simplified when a
// node is visited, so local rules (algebraic_rules.h) apply until none matches.
// The result is then looked up among the nodes kept so far. A node created by a
// rule takes the position and the name of the one it replaces. Rules read
// operands only, so a second sweep finds nothing and the work is linear in the
// size of the graph.

#include <utility>

#include "ir/op.h"
#include "ir/support/error.h"
#include "passes/passes.h"
#include "passes/simplify/algebraic_rules.h"
#include "passes/simplify/dead_code.h"
#include "passes/simplify/value_numbering.h"

namespace fusor::passes {
namespace {

using ir::Graph;
using ir::Node;

constexpr int kMaxSweeps = 16;
constexpr int kMaxRewritesOfANode = 64;
constexpr char kPass[] = "simplify";

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
      if (!replacement || !context_.ConsumeFuel(kPass, *node->output())) {
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
    if (known != node && context_.ConsumeFuel(kPass, *node->output())) {
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
    const bool dropped = EraseDeadNodes(graph, context, kPass);
    if (!swept && !dropped) return changed;
    changed = true;
  }
  FUSOR_ASSERT(false, "graph {}: no fixed point after {} iterations",
               graph.name(), kMaxSweeps);
}

}  // namespace fusor::passes
