#pragma once

#include <vector>

#include "ir/graph.h"
#include "ir/interpreter/interpreter.h"

namespace fusor::test {

// Interprets the graph on several ranks in lockstep, including collectives.
// `inputs` and the result have one entry per rank. Sums over ranks add in rank
// order and round once.
std::vector<std::vector<ir::Tensor>> InterpretRanks(
    const ir::Graph& graph, const std::vector<std::vector<ir::Tensor>>& inputs,
    ir::EvalMode mode);

}  // namespace fusor::test
