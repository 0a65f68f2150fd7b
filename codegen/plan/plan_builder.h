#pragma once

#include "codegen/lower/lower.h"
#include "codegen/plan/plan.h"
#include "codegen/plan/plan_options.h"
#include "codegen/target_compiler.h"
#include "ir/graph.h"

namespace fusor::codegen {

// Builds the plan of an optimised graph. Every node must be a fusion with a
// lowered kernel, a library op that the target prepares, a collective, a view
// (IsView) or a constant. Updates aliased state in place if no later step needs
// the old value, otherwise by a copy at the end. Deterministic. CompileKernels
// adds the kernels' machine code later.
//
// Throws kGraph if the target does not support an op or the state layout lacks
// an input. Throws kOutOfMemory above the limit, naming the five largest
// buffers at the peak. Throws kInternal if a kernel's spans cannot be laid out.
Plan BuildPlan(const ir::Graph& graph, const LoweredNodes& lowered,
               const TargetCompiler& compiler, const PlanOptions& options = {});

}  // namespace fusor::codegen
