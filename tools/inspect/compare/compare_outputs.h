#pragma once

#include "tools/inspect/compare/comparison.h"

namespace fusor::runtime {

struct OutputDifferences {
  std::vector<ValueDifference> values;  // outputs first, then state
  int64_t unmatched = 0;                // of one of the two alone
};

// Program `program` of both sessions after a step: its outputs and next state,
// or the gradients among its outputs; but copies of weights and parts of
// parameters, which say what the parameters do. Where each rank has a part all
// ranks must call this.
OutputDifferences CompareOutputs(Session& a, Session& b, int program,
                                 bool gradients);

}  // namespace fusor::runtime
