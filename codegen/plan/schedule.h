#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "codegen/plan/plan.h"
#include "ir/graph.h"

namespace fusor::codegen {

// Returns the workspace of a node in bytes.
using WorkspaceBytes = std::function<int64_t(const ir::Node&)>;

// Returns a topological order of all nodes. If the graph allows it, every
// reader of a state's old value precedes the node that computes the new value,
// so that the state can be updated in place. Tries the graph's order, depth
// first, and greedy least memory first from either end, as in PyTorch
// Inductor's memory.py; the forward greedy order both with and without
// workspaces. Returns the order with the smallest PeakLiveBytes. The graph's
// order wins ties. Deterministic.
//
// A graph with collectives keeps its order, except that nodes that depend on
// collectives come last, sorted by the last collective that they depend on.
std::vector<ir::Node*> Schedule(const ir::Graph& graph,
                                const WorkspaceBytes& workspace = {});

// Returns the maximum number of bytes that are live while a node of `order`
// runs. Counts workspaces and values. Excludes inputs, constants and outputs,
// which are in other arenas. A view shares the storage of its operand.
int64_t PeakLiveBytes(const ir::Graph& graph, std::span<ir::Node* const> order,
                      const WorkspaceBytes& workspace = {});

// Assigns the collectives of a plan to stream 1 and adds events. A collective
// waits for the last earlier step that uses one of its buffers. The first later
// step that uses one of its buffers waits for it. Needs no offsets.
void AssignStreams(Plan& plan);

}  // namespace fusor::codegen
