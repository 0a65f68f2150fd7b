#pragma once

#include <set>
#include <string>

#include "codegen/kernel_cache.h"
#include "codegen/plan/plan.h"
#include "codegen/plan/plan_builder.h"
#include "codegen/target_compiler.h"

namespace fusor::codegen {

struct KernelsReport {
  // Names of the kernels that were replaced by edited text.
  std::set<std::string> substituted;
  CacheReport cache;
};

// Verifies the plan's kernels (kInternal) and sets their fingerprint and
// binary. Reads binaries from the cache in folder `options.kernel_cache` and
// stores there those that it compiles. Without a folder, compiles all kernels.
// Compiles the edited text of `options.substitutes` instead of a kernel if its
// KernelStamp matches. Otherwise throws kUsage, or ignores the text without
// `options.reject_unused`.
KernelsReport CompileKernels(Plan& plan, const TargetCompiler& compiler,
                             const PlanOptions& options);

}  // namespace fusor::codegen
