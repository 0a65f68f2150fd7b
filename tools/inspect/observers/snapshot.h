#pragma once

// A graph and values for its inputs in a folder: module.txt, the text form, and
// inputs.safetensors, the values in logical order under the inputs' names.

#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "ir/interpreter/interpreter.h"

namespace fusor::runtime {

// Makes the folder. Throws kUsage when it cannot be written.
void WriteSnapshot(const std::string& folder, const ir::Graph& graph,
                   std::span<const ir::Tensor> inputs);

// One value for each input of the graph, from a file as above. Throws
// kCheckpoint, naming the input, when one is missing or of another type.
std::vector<ir::Tensor> ReadInputs(const std::string& path,
                                   const ir::Graph& graph);

}  // namespace fusor::runtime
