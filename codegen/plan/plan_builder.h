#pragma once

#include "codegen/lower/lowered_kernel.h"
#include "codegen/plan/plan.h"
#include "codegen/plan/plan_options.h"
#include "codegen/target_compiler.h"
#include "ir/graph.h"

namespace fusor::codegen {

// The plan of an optimised graph, in which every node is a fusion with a
// lowered kernel, a library op that the target prepares, a view (IsView) or a
// constant. State that outputs alias is updated in place where nothing needs
// the old value any longer and by a copy at the end elsewhere. Deterministic.
// Its kernels have no machine code yet: that is CompileKernels' work.
//
// Throws kGraph when the target cannot do an op or the state layout lacks an
// input, kOutOfMemory above the limit, naming the five largest buffers at the
// peak, and kInternal when a kernel's spans cannot be laid out.
Plan BuildPlan(const ir::Graph& graph, const LoweredNodes& lowered,
               const TargetCompiler& compiler, const PlanOptions& options = {});

}  // namespace fusor::codegen
