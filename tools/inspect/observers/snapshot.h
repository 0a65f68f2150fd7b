#pragma once

// A folder with a graph and its input values: module.txt, the text form, and
// inputs.safetensors, the values in logical order by input name.

#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "ir/interpreter/interpreter.h"

namespace fusor::runtime {

// Writes the files and creates the folder. Throws kUsage if it cannot be
// created or module.txt cannot be written.
void WriteSnapshot(const std::string& folder, const ir::Graph& graph,
                   std::span<const ir::Tensor> inputs);

// Reads one value per input of the graph. Throws kCheckpoint, naming the input,
// if one is missing or has another type.
std::vector<ir::Tensor> ReadInputs(const std::string& path,
                                   const ir::Graph& graph);

}  // namespace fusor::runtime
