#pragma once

#include "tools/inspect/compare/comparison.h"

namespace fusor::runtime {

struct CallDifferences {
  std::vector<ValueDifference> values;
  int64_t unmatched = 0;  // calls without a counterpart, values of unlike types
};

// Runs program `program` of both sessions once, interleaved step by step, and
// compares the operands and results of library calls. Convolutions, matmuls and
// poolings occur in every variant at the same model location, whatever is fused
// between them. Skips parameters and inputs. A value that several calls read is
// compared once, at its first reader.
//
// `scale`: loss scale of `a` / loss scale of `b`. Gradients carry the loss
// scale until the update, so those of `b` are multiplied by `scale` first.
CallDifferences StepTogether(Session& a, Session& b, int program, double scale);

}  // namespace fusor::runtime
