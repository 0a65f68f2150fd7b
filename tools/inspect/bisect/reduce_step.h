#pragma once

#include <span>

#include "codegen/plan/plan.h"
#include "ir/graph.h"
#include "runtime/backend/backend.h"
#include "tools/inspect/bisect/isolate.h"
#include "tools/inspect/bisect/reduce_case.h"

namespace fusor::runtime {

// The least part of a fusion whose kernel, compiled again by itself, still
// differs from the interpreter by more than its tolerance: a graph of one
// fusion, and inputs for it. The whole step where it is a library call.
// REQUIRES: CompareStep of the step and these inputs is not ok().
codegen::TestCase ReduceStep(const codegen::Plan& plan, const ir::Graph& graph,
                             size_t step, std::span<const ir::Tensor> inputs,
                             const codegen::TargetCompiler& compiler,
                             Device& device, const IsolateOptions& options);

}  // namespace fusor::runtime
