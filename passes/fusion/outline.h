#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "ir/graph.h"

namespace fusor::passes {

// Returns the nodes in depth-first order from those of them that are results.
// That order is topological and does not depend on copies and other nodes
// between them, so that equal work becomes equal kernels.
std::vector<ir::Node*> DepthFirst(
    const std::vector<ir::Node*>& nodes,
    const std::unordered_set<const ir::Value*>& results);

// Nodes that become one kernel.
struct OutlineRequest {
  std::vector<ir::Node*> members;  // order in the body, topological
  // Results of members that the fusion returns, in its order. Empty: all that
  // other nodes read and all graph outputs. Members that other nodes still read
  // stay in the graph: the kernel computes them again.
  std::vector<ir::Value*> results{};
  // The fusion takes its position in the graph's order. Null: the last member.
  const ir::Node* position = nullptr;
  ir::Location location{};
  bool eager_rounding = false;
  // One body input per operand, even if two operands are the same value:
  // kernels that are not loops find their operands by position.
  bool separate_operands = false;
  // Rewrites the body, and names its values, before the fusion is created.
  // Results that become body inputs are replaced by the operands.
  std::function<void(ir::Graph& body)> rewrite{};
};

// Moves the members of each request into the body of a new fusion, whose
// results keep the names of the values that they replace. Returns the fusions;
// null if a rewrite left no results. REQUIRES: no node is a member twice.
std::vector<ir::Node*> Outline(ir::Graph& graph,
                               std::span<const OutlineRequest> requests);

// The body of a fusion, and the values outside that it reads and replaces.
struct FusionBody {
  explicit FusionBody(const std::string& name = "fusion")
      : graph(std::make_unique<ir::Graph>(name)) {}

  // Adds an input for `operand`, a value outside.
  ir::Value* AddInput(ir::Value* operand);
  // Adds a copy of `node` that reads `inputs`, values of the body. Its results
  // have the same types and other names.
  ir::Node* AddCopy(const ir::Node& node, std::vector<ir::Value*> inputs);
  // Adds an output that replaces `result`, a value outside.
  void AddOutput(ir::Value* value, ir::Value* result);

  std::unique_ptr<ir::Graph> graph;
  std::vector<ir::Value*> operands{};  // by input
  std::vector<ir::Value*> results{};   // by output
};

// Adds a fusion before `before`, or at the end if that is null. Redirects the
// uses of the results that it replaces, and erases `dead`, which must include
// their producers. The fusion's results keep their names.
ir::Node* ReplaceByFusion(ir::Graph& graph, FusionBody body, ir::Attrs attrs,
                          const ir::Location& location, ir::Node* before,
                          const std::vector<ir::Node*>& dead);

// Replaces a fusion by the nodes of its body and returns them. The fusion's
// results keep their names, all nodes have its location.
std::vector<ir::Node*> Inline(ir::Graph& graph, ir::Node* fusion);

// Gives every reader of a node that is free to recompute (IsFree) a separate
// copy, operands that are free included: a kernel can then index it as that
// reader requires. Returns true if it made a copy.
bool DuplicateFreeNodes(ir::Graph& graph);

}  // namespace fusor::passes
