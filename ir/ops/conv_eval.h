#pragma once

// The interpreter's convolutions: direct sums in fp64, one matmul per kernel
// position.

#include "ir/interpreter/strided_loops.h"

namespace fusor::ir {

void EvalConv(const Node& node, EvalInputs in, EvalOutputs out, EvalMode mode);
void EvalConvGradInput(const Node& node, EvalInputs in, EvalOutputs out,
                       EvalMode mode);
void EvalConvGradWeight(const Node& node, EvalInputs in, EvalOutputs out,
                        EvalMode mode);

}  // namespace fusor::ir
