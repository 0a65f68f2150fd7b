#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "codegen/plan/plan.h"
#include "ir/graph.h"
#include "ir/interpreter/interpreter.h"

namespace fusor::inspect {

// The buffers of a step's tensors, one per operand and result of the step's
// node, in the node's order. Splits buffers that span several values.
struct StepValues {
  std::vector<int> operands;
  std::vector<int> results;
};
StepValues ValuesOfStep(const codegen::Plan& plan, const codegen::Step& step);

// Returns the node of the program's graph that the step runs.
const ir::Node& NodeOfStep(const ir::Graph& graph, const codegen::Step& step);

// Returns a graph of only this node, with one input per value that it reads,
// named after the value, and one output per result. Operands that read the same
// buffer with the same type share an input.
std::unique_ptr<ir::Graph> GraphOfNode(const ir::Node& node);

// Returns, per operand, the index of the graph input that it reads.
std::vector<size_t> InputsOfOperands(const ir::Node& node);

// Returns one tensor per operand, given one per input.
std::vector<ir::Tensor> OperandTensors(std::span<const ir::Tensor> inputs,
                                       std::span<const size_t> input_of);

// Returns the number of NaNs and infinities in a tensor of `type`.
int64_t CountNonFinite(const ir::TensorType& type,
                       std::span<const uint8_t> bytes);

// A folder with a graph and its input values: module.txt, the text form, and
// inputs.safetensors, the values in logical order by input name.

// Writes the files and creates the folder. Throws kUsage if it cannot be
// created or module.txt cannot be written.
void WriteSnapshot(const std::string& folder, const ir::Graph& graph,
                   std::span<const ir::Tensor> inputs);

// Reads one value per input of the graph. Throws kCheckpoint, naming the input,
// if one is missing or has another type.
std::vector<ir::Tensor> ReadInputs(const std::string& path,
                                   const ir::Graph& graph);

}  // namespace fusor::inspect
