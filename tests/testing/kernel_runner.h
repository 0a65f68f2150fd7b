#pragma once

#include <span>
#include <vector>

#include "ir/interpreter.h"
#include "ir/target.h"

namespace fusor::test {

// Runs an optimised graph: fusion nodes lowered to kernels, verified and
// interpreted; every other node by the IR's interpreter in typed mode.
std::vector<ir::Tensor> RunWithKernels(const ir::Graph& graph,
                                       std::span<const ir::Tensor> inputs,
                                       const ir::Target& target);

}  // namespace fusor::test
