// Wraps each op that the target's library leaves to a generated kernel
// (kGeneratedAlgorithm) in a fusion. Runs last, because FuseUpdates still moves
// copies into its launches.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "passes/library/generated_kernel.h"
#include "passes/passes.h"

namespace fusor::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::Value;

// Replaces `node` by a fusion that returns those of its results that are used.
void Outline(Graph& graph, Node& node) {
  auto body = std::make_unique<Graph>("fusion");
  std::vector<Value*> inputs;
  for (const Value* operand : node.inputs()) {
    inputs.push_back(
        body->AddInput(operand->type(), ir::InputRole::kData, operand->name()));
  }
  Node* inner = body->AddNode(node.kind(), std::move(inputs), node.attrs(),
                              node.location());
  std::vector<Value*> results;
  for (size_t i = 0; i < node.num_outputs(); ++i) {
    Value* result = node.output(i);
    inner->output(i)->set_type(result->type());
    body->Rename(inner->output(i), result->name());
    if (graph.IsUnused(result)) continue;
    body->AddOutput(inner->output(i), result->name());
    results.push_back(result);
  }
  Node* fusion = graph.AddNode("fusion", node.inputs(),
                               {{"rounding", std::string("fast")}},
                               node.location(), &node, std::move(body));
  std::vector<std::string> names;
  for (size_t i = 0; i < results.size(); ++i) {
    names.push_back(results[i]->name());
    graph.ReplaceAllUses(results[i], fusion->output(i));
  }
  graph.Erase(&node);
  graph.RenameResults(fusion, std::move(names));
}

}  // namespace

bool GenerateKernels(Graph& graph, PassContext& context) {
  std::vector<Node*> generated;
  for (const auto& node : graph.nodes()) {
    if (IsGenerated(*node, context.target())) generated.push_back(node.get());
  }
  for (Node* node : generated) Outline(graph, *node);
  if (generated.empty()) return false;
  context.counters()["generated_kernels"] +=
      static_cast<int64_t>(generated.size());
  return true;
}

}  // namespace fusor::passes
