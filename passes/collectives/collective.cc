#include "passes/collectives/collective.h"

#include <algorithm>
#include <string>
#include <utility>

#include "ir/shard.h"

namespace fusor::passes {

using ir::Graph;
using ir::Node;
using ir::Value;

bool GathersParameters(const Graph& graph, const Node& node) {
  if (!node.HasTrait(ir::OpTrait::kCollective) || IsSumOverRanks(node))
    return false;
  const auto part = [&](const Value* value) {
    return value->producer() == nullptr &&
           ir::IsShard(graph.inputs()[value->index()].attrs);
  };
  return std::all_of(
      node.inputs().begin(), node.inputs().end(), [&](const Value* operand) {
        const Node* producer = operand->producer();
        return part(operand) ||
               (producer != nullptr && producer->num_inputs() == 1 &&
                part(producer->input(0)));
      });
}

Node* JoinCollectives(Graph& graph, const std::vector<Node*>& nodes) {
  std::vector<Value*> operands;
  std::vector<std::string> names;
  for (const Node* node : nodes) {
    operands.push_back(node->input(0));
    names.push_back(node->output()->name());
  }
  Node* joined = graph.AddNode(nodes[0]->kind(), operands, nodes[0]->attrs(),
                               nodes[0]->location(), nodes.back());
  for (size_t i = 0; i < nodes.size(); ++i) {
    graph.ReplaceAllUses(nodes[i]->output(), joined->output(i));
  }
  graph.EraseAll(nodes);
  graph.RenameResults(joined, std::move(names));
  return joined;
}

}  // namespace fusor::passes
