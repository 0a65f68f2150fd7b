#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "codegen/plan/plan.h"

namespace fusor::codegen {

// Text to compile instead of a kernel (TargetCompiler::CompileArtifact).
struct KernelSubstitute {
  std::string source;  // names it in errors
  std::string text;
};

struct PlanOptions {
  // The session's state layout. Null: the plan chooses one (see StateOf), with
  // parameters first and in the order that multi-tensor updates require.
  const StateLayout* state = nullptr;
  // Limit for the sum of all arenas; 0: none.
  int64_t memory_limit_bytes = 0;
  int threads = 0;             // compile threads; 0: one per core
  std::string kernel_cache{};  // directory; empty: compile everything
  // Options that produced the graph (passes::Settings). Used to explain why a
  // kernel is not in the cache.
  std::string settings{};
  // Alters a kernel before it is compiled (passes::RewriteHook); may be unset.
  std::function<void(Kernel&)> alter_kernel{};
  // Edited artifacts to compile instead of kernels, by kernel name. One that
  // matches no kernel is rejected if refuse_unused is set, otherwise ignored.
  std::map<std::string, KernelSubstitute> substitutes{};
  bool refuse_unused = true;
};

}  // namespace fusor::codegen
