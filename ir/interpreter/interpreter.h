#pragma once

#include <functional>
#include <span>
#include <vector>

#include "ir/graph.h"

namespace fusor::ir {

// A concrete tensor. Values are in logical row-major order, whatever the type's
// layout. In typed mode the type's dtype represents each value exactly.
struct Tensor {
  TensorType type;
  std::vector<double> data;
};

enum class EvalMode {
  kExact,  // fp64; rounds only integers and bools
  kTyped,  // rounds each result to its dtype
};

// Runs the graph op by op, without optimisation; the reference of all tests.
// `inputs` correspond to graph.inputs(). Returns one tensor per output.
// Simulates one rank: all_reduce is the identity, all_gather a broadcast.
std::vector<Tensor> Interpret(const Graph& graph,
                              std::span<const Tensor> inputs, EvalMode mode);

// Computes the results of one node from its operand values.
std::vector<Tensor> InterpretNode(const Node& node,
                                  std::span<const Tensor* const> inputs,
                                  EvalMode mode);

// As Interpret, and calls `visit(value, tensor)` for every value of the graph
// when it is computed, including the inputs.
using ValueVisitor = std::function<void(const Value&, const Tensor&)>;
std::vector<Tensor> Interpret(const Graph& graph,
                              std::span<const Tensor> inputs, EvalMode mode,
                              const ValueVisitor& visit);

}  // namespace fusor::ir
