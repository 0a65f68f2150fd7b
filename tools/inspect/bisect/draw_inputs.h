#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ir/interpreter/interpreter.h"

namespace fusor::ir {

// Random values for an input of a graph, to run it with: near those that state
// starts with, of unit variance for floating data, 0 .. 255 for bytes, 0 .. 3
// for other integers (labels), positive for hyper-parameters. Exact in the
// dtype. A pure function of seed, name and type, so that a graph before and
// after a rewrite gets the same, and so does an input whatever the others are,
// but for weight copies, which DrawInputs makes of their weights.
Tensor DrawInput(const Input& input, uint64_t seed);
std::vector<Tensor> DrawInputs(const Graph& graph, uint64_t seed);

// If a max_pool_grad or max_pool_gather reads `value`: positions of its layout
// and that a max_pool of random numbers has. Others may lie outside of the
// image, which no kernel checks.
std::optional<Tensor> DrawPositions(const Value& value, uint64_t key);

}  // namespace fusor::ir
