#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "ir/graph.h"

namespace fusor::codegen {

// What one execution of a node takes, for pictures: measured, or modelled.
struct NodeTime {
  double us = 0;
};

// By the name of a node's first result, as Step::name.
using NodeTimes = std::map<std::string, NodeTime>;

// The graph as the script of an HTML page (page_graph.js) draws it:
//
//   rows      model locations, two levels deep: "conv1", "layer3.1"
//   columns   the phases that occur: "forward", "backward", "update"
//   inputs    {name, type, role}
//   nodes     {id, op, name, loc, source, row, col, kind, label, in, types,
//              bytes, flops, us?, body?}; `in` holds ids of nodes, or -1 - i
//              for input i of the graph; `body` of a fusion is a list of nodes,
//              whose `in` counts the fusion's operands alike
//
// kind: "matrix" (convolution, matmul), "fusion", "kernel" (a fusion of one
// op), "library", "copy", "op" (what is no kernel yet). Deterministic.
nlohmann::json GraphView(const ir::Graph& graph, const NodeTimes& times = {});

// The first two components of a location when the second is a number, else the
// first: the block of a network that it belongs to.
std::string LocationBlock(const std::string& location);

// What a kernel is, for tables and colours: see GraphView.
std::string NodeKind(const ir::Node& node);

// False for what costs nothing inside a kernel: broadcasts, constants, ...
bool IsCostly(const ir::Node& node);

// The ops of a fusion that cost something, most frequent first: "3 mul, 2 add".
std::string BodySummary(const ir::Node& fusion);

}  // namespace fusor::codegen
