#pragma once

#include "tools/inspect/compare/comparison.h"

namespace fusor::runtime {

struct CallDifferences {
  std::vector<ValueDifference> values;
  int64_t unmatched = 0;  // calls that one of the programs alone has
};

// Runs program `program` of both sessions once, step by step side by side, and
// compares what the library calls read and write: convolutions, products and
// poolings are what every variant of a model has at the same model location,
// whatever is fused between them. Parameters and inputs are left out, a value
// that several calls read counts once, for the first.
//
// `scale` is the loss scale of `a` divided by that of `b`. Gradients carry the
// loss scale until the update, so those of `b` are multiplied by `scale` first.
CallDifferences StepTogether(Session& a, Session& b, int program, double scale);

}  // namespace fusor::runtime
