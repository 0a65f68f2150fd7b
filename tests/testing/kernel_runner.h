#pragma once

#include <functional>
#include <span>
#include <vector>

#include "ir/interpreter/interpreter.h"
#include "ir/target/target.h"

namespace fusor::test {

// Called after each fusion node with its operands and results.
using FusionVisitor = std::function<void(
    const ir::Node& fusion, std::span<const ir::Tensor* const> operands,
    std::span<const ir::Tensor> results)>;

// Runs an optimised graph. Lowers each fusion node to a kernel, verifies and
// interprets it. Interprets every other node in typed mode. Differs from the
// typed interpreter only in the summation order of kernels and in 16-bit values
// that kernels keep in registers unrounded.
std::vector<ir::Tensor> RunWithKernels(const ir::Graph& graph,
                                       std::span<const ir::Tensor> inputs,
                                       const ir::Target& target,
                                       const FusionVisitor& visit = nullptr);

}  // namespace fusor::test
