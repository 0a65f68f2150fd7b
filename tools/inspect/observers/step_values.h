#pragma once

#include <memory>
#include <span>
#include <vector>

#include "codegen/plan/plan.h"
#include "ir/graph.h"
#include "ir/interpreter/interpreter.h"

namespace fusor::runtime {

// The buffers of a step's tensors, spans taken apart: one for each operand and
// result of the node that the step runs, in the node's order.
struct StepValues {
  std::vector<int> operands;
  std::vector<int> results;
};
StepValues ValuesOfStep(const codegen::Plan& plan, const codegen::Step& step);

// The node of the program's graph that the step runs; null for a copy that the
// plan added.
const ir::Node* NodeOfStep(const ir::Graph& graph, const codegen::Step& step);

// The type as which the step reads operand `i`, or writes result `i`: of a view
// it is not the buffer's.
const ir::TensorType& OperandType(const codegen::Plan& plan,
                                  const codegen::Step& step,
                                  const ir::Node* node, size_t i);
const ir::TensorType& ResultType(const codegen::Plan& plan,
                                 const codegen::Step& step,
                                 const ir::Node* node, size_t i);

// The step alone as a graph: an input for each value that it reads, named after
// it, and an output for each result. A value that is read by several operands
// is one input: it has one buffer.
std::unique_ptr<ir::Graph> GraphOfStep(const codegen::Plan& plan,
                                       const codegen::Step& step,
                                       const ir::Node* node);

// The input of that graph that each operand reads.
std::vector<size_t> InputsOfOperands(const codegen::Plan& plan,
                                     const codegen::Step& step,
                                     const ir::Node* node);

// Returns one tensor per operand, given one per input.
std::vector<ir::Tensor> OperandTensors(std::span<const ir::Tensor> inputs,
                                       std::span<const size_t> input_of);

// What a tensor in memory, of `type`, has that is no number.
int64_t CountNonFinite(const ir::TensorType& type,
                       std::span<const uint8_t> bytes);

}  // namespace fusor::runtime
