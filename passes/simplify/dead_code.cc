#include "passes/simplify/dead_code.h"

#include <algorithm>
#include <unordered_set>

#include "ir/op.h"
#include "passes/passes.h"

namespace fusor::passes {

using ir::Node;

namespace {

// Erases dead nodes whose first result `allow` accepts.
template <typename Allow>
bool EraseDead(ir::Graph& graph, const Allow& allow) {
  std::unordered_set<const ir::Value*> outputs;
  for (const ir::Output& output : graph.outputs()) outputs.insert(output.value);
  std::vector<Node*> dead;
  std::vector<bool> is_dead(graph.nodes().size(), false);
  const auto needed = [&](const ir::Value* value) {
    return outputs.contains(value) ||
           std::any_of(value->uses().begin(), value->uses().end(),
                       [&](const ir::Use& use) {
                         return !is_dead[use.node->position()];
                       });
  };
  for (size_t i = graph.nodes().size(); i-- > 0;) {
    Node* node = graph.nodes()[i].get();
    bool used = !node->HasTrait(ir::OpTrait::kPure);
    for (size_t j = 0; j < node->num_outputs() && !used; ++j) {
      used = needed(node->output(j));
    }
    if (used || !allow(*node->output())) continue;
    is_dead[i] = true;
    dead.push_back(node);
  }
  graph.EraseAll(dead);
  return !dead.empty();
}

}  // namespace

bool EraseDeadNodes(ir::Graph& graph, PassContext& context,
                    const std::string& pass) {
  return EraseDead(graph, [&](const ir::Value& value) {
    return context.ConsumeFuel(pass, value);
  });
}

bool EraseDeadNodes(ir::Graph& graph) {
  return EraseDead(graph, [](const ir::Value&) { return true; });
}

}  // namespace fusor::passes
