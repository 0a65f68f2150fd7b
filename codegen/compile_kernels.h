#pragma once

#include <set>
#include <string>

#include "codegen/build_plan.h"
#include "codegen/plan.h"
#include "codegen/target_compiler.h"

namespace fusor::codegen {

// Fills in fingerprint and binary of the plan's kernels, from the cache in
// folder `options.kernel_cache` where it has them, and stores there what it had
// to compile. Without a folder all are compiled. Edited text stands in for the
// kernels of `options.substitutes` that it was made of (KernelStamp); throws
// kUsage for what is of another kernel. The names of those that it stands in
// for.
std::set<std::string> CompileKernels(Plan& plan, const TargetCompiler& compiler,
                                     const PlanOptions& options);

}  // namespace fusor::codegen
