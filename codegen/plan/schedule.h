#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ir/graph.h"

namespace fusor::codegen {

// Temporary memory that a node needs while it runs, in bytes.
using WorkspaceBytes = std::function<int64_t(const ir::Node&)>;

// A topological order of all nodes in which every reader of a state's old value
// runs before the node that makes its new value, wherever the graph allows, so
// that the state can be updated in place. Several orders are raced - the
// graph's own, depth first, and greedily least memory first from either end, as
// in PyTorch Inductor's memory.py, the forward one with workspaces in mind and
// without - and the one with the smallest PeakLiveBytes is kept; the graph's
// own order wins ties. Deterministic.
//
// A graph with collectives keeps its own order, but for what needs their
// results: that comes last, what waits for the first collective first.
std::vector<ir::Node*> Schedule(const ir::Graph& graph,
                                const WorkspaceBytes& workspace = {});

// Greatest sum over the bytes that are live while a node of `order` runs:
// its workspace, and values but for inputs, constants and outputs, which have a
// place of their own. Views count as what they view.
int64_t PeakLiveBytes(const ir::Graph& graph, std::span<ir::Node* const> order,
                      const WorkspaceBytes& workspace = {});

}  // namespace fusor::codegen
