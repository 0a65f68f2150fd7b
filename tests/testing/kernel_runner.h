#pragma once

#include <functional>
#include <span>
#include <vector>

#include "ir/interpreter/interpreter.h"
#include "ir/target/target.h"

namespace fusor::test {

// A fusion node that has run, on these operands.
using FusionVisitor = std::function<void(
    const ir::Node& fusion, std::span<const ir::Tensor* const> operands,
    std::span<const ir::Tensor> results)>;

// Runs an optimised graph: fusion nodes lowered to kernels, verified and
// interpreted; every other node by the IR's interpreter in typed mode. So it is
// the typed interpreter but for the order in which kernels add up, and for what
// they keep in registers without rounding it to 16 bit.
std::vector<ir::Tensor> RunWithKernels(const ir::Graph& graph,
                                       std::span<const ir::Tensor> inputs,
                                       const ir::Target& target,
                                       const FusionVisitor& visit = nullptr);

}  // namespace fusor::test
