#pragma once

#include <functional>
#include <span>
#include <vector>

#include "ir/graph.h"

namespace fusor::ir {

// A concrete tensor of the interpreter: values in logical row-major order,
// whatever the type's layout; each is exactly representable in the type's
// dtype in typed mode.
struct Tensor {
  TensorType type;
  std::vector<double> data;
};

enum class EvalMode {
  kExact,  // fp64 throughout, nothing is rounded but integers and bool
  kTyped,  // each result is rounded to its value's dtype
};

// Runs the graph plainly, one op after the other: the oracle of all tests.
// `inputs` correspond to graph.inputs(); returns one tensor per output. The
// world is one rank: all_reduce is the identity, all_gather a broadcast.
std::vector<Tensor> Interpret(const Graph& graph,
                              std::span<const Tensor> inputs, EvalMode mode);

// The results of one node, for its operand values.
std::vector<Tensor> InterpretNode(const Node& node,
                                  std::span<const Tensor* const> inputs,
                                  EvalMode mode);

// Calls `visit(value, tensor)` for every value of the graph as it is computed,
// the inputs included.
using ValueVisitor = std::function<void(const Value&, const Tensor&)>;
std::vector<Tensor> Interpret(const Graph& graph,
                              std::span<const Tensor> inputs, EvalMode mode,
                              const ValueVisitor& visit);

}  // namespace fusor::ir
