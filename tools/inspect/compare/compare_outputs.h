#pragma once

#include "tools/inspect/compare/comparison.h"

namespace fusor::runtime {

struct OutputDifferences {
  std::vector<ValueDifference> values;  // outputs first, then state
  int64_t unmatched = 0;  // without a counterpart of the same type
};

// Compares the outputs and next state of program `program` of both sessions
// after a step, or, with `gradients`, the gradients among the outputs. Skips
// cached weight copies. Compares sharded parameters as whole parameters, under
// the parameter's name. With shards, all ranks must call this.
OutputDifferences CompareOutputs(Session& a, Session& b, int program,
                                 bool gradients);

}  // namespace fusor::runtime
