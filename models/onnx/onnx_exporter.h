#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace fusor::models {

// Returns the values of a parameter or running statistic, row-major.
using StateValues = std::function<std::vector<float>(const std::string& name)>;

// Returns the bytes of an ONNX model, opset 18, that computes the output
// `result` of a graph. Data inputs that the result needs become inputs of the
// model, state becomes initialisers. `graph` and `other` are one network at two
// batch sizes (the first extents of their data inputs). Extents that differ
// between them are multiples of the batch size, which is symbolic in the model.
// If both are the same graph, the batch size is fixed. Throws kGraph for an op
// that ONNX does not have and for a model of more than 2 GiB.
std::string ExportOnnx(const ir::Graph& graph, const ir::Graph& other,
                       const std::string& result, const StateValues& values);

}  // namespace fusor::models
