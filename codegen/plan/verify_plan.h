#pragma once

#include "codegen/plan/plan.h"
#include "ir/graph.h"

namespace fusor::codegen {

// Proves that a plan is correct, independently of how it was built. Checks that
// every argument fits its kernel or call, and that every buffer is aligned and
// inside its arena. Then replays the steps. For every order that streams and
// events allow,
//   - each step reads exactly the values that it names;
//   - no value is overwritten before its last reader;
//   - a result overwrites an operand only if the kernel allows it;
//   - inputs, constants, state and outputs hold their values at the end.
// Throws kInternal naming plan, step and buffer.
void VerifyPlan(const Plan& plan);

// Also proves that the plan computes this graph: every node that needs a step
// has one with its operands and results in order, and all inputs and outputs
// match.
void VerifyPlan(const Plan& plan, const ir::Graph& graph);

// Checks the part of VerifyPlan that tracks values in memory. Throws kInternal.
// REQUIRES: all indices and sizes in the plan are valid.
void ReplayPlan(const Plan& plan);

}  // namespace fusor::codegen
