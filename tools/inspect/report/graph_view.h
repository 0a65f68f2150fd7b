#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace fusor::inspect {

// The part of a training step that a node belongs to.
enum class StepPhase : uint8_t {
  kForward,   // output "loss", running statistics, all that needs no gradient
  kBackward,  // computes gradients
  kUpdate,    // computes the next parameters and momentum from gradients
};

std::string_view PhaseName(StepPhase phase);  // "forward"

// Returns the phase of each node, by position. All are forward in a graph
// without output "loss". A fusion of two phases belongs to the earlier one.
std::vector<StepPhase> PhasesOf(const ir::Graph& graph);

// Time and kernel of a node in a plan.
struct NodeRun {
  double us = 0;       // measured or estimated time of one execution
  std::string kernel;  // the generated kernel's name; empty for a library call
};

// By name of the node's first result, as Step::name.
using NodeRuns = std::map<std::string, NodeRun>;

// Returns the graph in the JSON format of page_graph.js:
//
//   name      of the graph
//   rows      model locations, two levels deep: "conv1", "layer3.1"
//   columns   the phases that occur: "forward", "backward", "update"
//   inputs    {name, type, role}
//   nodes     {id, op, name, loc, source, row, col, kind, label, in, types,
//              bytes, flops, us?, kernel?, body?}; `in` holds node ids, or -1 -
//              i for input i of the graph; `body` of a fusion is a list of
//              nodes, whose `in` refers to the fusion's operands in the same
//              way
//
// kind: "matrix" (convolution, matmul), "fusion", "kernel" (a fusion of one
// op), "library", "copy", "op" (not yet in a kernel). Deterministic.
nlohmann::json GraphView(const ir::Graph& graph, const NodeRuns& runs = {});

// Returns the first two components of a location if the second is a number,
// otherwise the first: the network block that it belongs to.
std::string LocationBlock(const std::string& location);

// Returns a node's kind for tables and colours; see GraphView.
std::string NodeKind(const ir::Node& node);

// Returns false for ops that are free inside a kernel, e.g. broadcasts.
bool IsCostly(const ir::Node& node);

// Returns the costly ops of a fusion, most frequent first: "3 mul, 2 add".
std::string BodySummary(const ir::Node& fusion);

// Returns what a fusion computes in the words of the model. For lowered
// normalisation: "BN-ReLU", "BN gradient". For other fusions of at least four
// costly ops, the names of their layers: "ln_1", "loss". Otherwise "".
std::string FusedLayers(const ir::Node& fusion);

// Generated kernels of one phase of a step, with or without reductions.
struct KernelCount {
  std::string what;  // "backward, with reductions"
  int64_t kernels = 0;
  int64_t ops = 0;       // in all kernels together
  int64_t most_ops = 0;  // in one kernel
};

// Counts the fusions of an optimised graph, forward first.
std::vector<KernelCount> CountKernels(const ir::Graph& graph);

// Returns one self-contained HTML page that draws the graph: a row per model
// location, a column per phase (forward, backward, update), a box per node.
// Rows open into the graph of their nodes, fusions into their bodies. Needs no
// network. Deterministic: equal graphs and titles give equal bytes.
std::string GraphPage(const ir::Graph& graph, const std::string& title);

}  // namespace fusor::inspect
