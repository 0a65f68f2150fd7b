#pragma once

#include "ir/graph.h"

namespace fusor::passes {

// Lets an evaluation graph read state "ema/<parameter>" in place of each
// parameter: to be compiled against the state of a training program with
// ema_decay. Running statistics stay those of the parameters.
void ReadAverages(ir::Graph& graph);

}  // namespace fusor::passes
