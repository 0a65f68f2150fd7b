#pragma once

#include "codegen/plan/plan.h"
#include "ir/graph.h"

namespace fusor::codegen {

// Proves a plan sound without looking at how it was made. Every argument fits
// its kernel or call; every buffer lies in its arena, aligned. Then the steps
// are replayed: whatever the streams and events allow to happen, each step
// reads exactly the values that it names, nothing is overwritten before its
// last reader, a result lies over an operand only where the kernel allows it,
// and inputs, constants, state and outputs hold their values at the end.
// Throws kInternal naming plan, step and buffer.
void VerifyPlan(const Plan& plan);

// Also that it is a plan of this graph: a step for every node that needs one,
// with the node's operands and results in their order; all inputs and outputs.
void VerifyPlan(const Plan& plan, const ir::Graph& graph);

}  // namespace fusor::codegen
