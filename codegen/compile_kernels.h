#pragma once

#include <set>
#include <string>

#include "codegen/cache_log.h"
#include "codegen/plan/plan.h"
#include "codegen/plan/plan_builder.h"
#include "codegen/target_compiler.h"

namespace fusor::codegen {

struct KernelsReport {
  // Names of the kernels that edited text stands in for.
  std::set<std::string> substituted;
  CacheReport cache;
};

// Fills in fingerprint and binary of the plan's kernels, from the cache in
// folder `options.kernel_cache` where it has them, and stores there what it had
// to compile. Without a folder all are compiled. Edited text stands in for the
// kernels of `options.substitutes` that it was made of (KernelStamp); throws
// kUsage for what is of another kernel.
KernelsReport CompileKernels(Plan& plan, const TargetCompiler& compiler,
                             const PlanOptions& options);

}  // namespace fusor::codegen
