#pragma once

#include <functional>
#include <string>

#include "ir/graph.h"

namespace fusor::passes {

// Lets an evaluation graph read state "ema/<parameter>" in place of each
// parameter: to be compiled against the state of a training program with
// ema_decay. Running statistics stay those of the parameters. `in_parts`: of
// which parameters each rank has a part of the average; they are read
// themselves, and must show the average then (Session::ShowAverages).
void ReadAverages(
    ir::Graph& graph, const std::function<bool(const std::string&)>& in_parts =
                          [](const std::string&) { return false; });

}  // namespace fusor::passes
