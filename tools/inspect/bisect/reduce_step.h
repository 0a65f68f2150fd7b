#pragma once

#include <span>

#include "codegen/plan/plan.h"
#include "ir/graph.h"
#include "runtime/backend/backend.h"
#include "tools/inspect/bisect/isolate.h"
#include "tools/inspect/bisect/reduce_case.h"

namespace fusor::runtime {

// Reduces a fusion to a small part whose kernel, compiled separately, still
// differs from the interpreter by more than its tolerance. Returns a graph of
// one fusion with its inputs, or the whole step if it is a library call or the
// separately compiled fusion passes. REQUIRES: CompareStep with the same step
// and inputs is not ok().
codegen::TestCase ReduceStep(const codegen::Plan& plan, const ir::Graph& graph,
                             size_t step, std::span<const ir::Tensor> inputs,
                             const codegen::TargetCompiler& compiler,
                             Device& device, const IsolateOptions& options);

}  // namespace fusor::runtime
