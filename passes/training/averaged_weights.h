#pragma once

#include <functional>
#include <string>

#include "ir/graph.h"

namespace fusor::passes {

// Makes an evaluation graph read state "ema/<parameter>" instead of each
// parameter, to compile it against the state of a training program with
// ema_decay. Running statistics remain those of the parameters. `in_parts`
// returns true for parameters whose averages are sharded over ranks: the graph
// keeps reading these parameters, which must then contain the averages
// (runtime::StateStore::Show).
void ReadAverages(
    ir::Graph& graph, const std::function<bool(const std::string&)>& in_parts =
                          [](const std::string&) { return false; });

}  // namespace fusor::passes
