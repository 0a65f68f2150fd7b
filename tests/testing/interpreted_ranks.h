#pragma once

#include <vector>

#include "ir/graph.h"
#include "ir/interpreter/interpreter.h"

namespace fusor::test {

// The interpreter for several ranks: runs the graph on all of them in step,
// `inputs` of each, with collectives between them. Sums are in the order of
// ranks and rounded once. Returns the outputs of each.
std::vector<std::vector<ir::Tensor>> InterpretRanks(
    const ir::Graph& graph, const std::vector<std::vector<ir::Tensor>>& inputs,
    ir::EvalMode mode);

}  // namespace fusor::test
