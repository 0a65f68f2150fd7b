#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "codegen/plan/plan.h"
#include "passes/fault.h"

namespace fusor::codegen {

// Text to be compiled in place of a kernel (TargetCompiler::CompileArtifact).
struct KernelSubstitute {
  std::string source;  // names it in errors
  std::string text;
};

struct PlanOptions {
  // Where the session keeps its state; null: the plan decides, parameters
  // first, in the order that joined updates demand (StateOf tells).
  const StateLayout* state = nullptr;
  // For all arenas together; 0: any size.
  int64_t memory_limit_bytes = 0;
  int threads = 0;             // compile threads; 0: one a core
  std::string kernel_cache{};  // folder; empty: compile everything
  // By what options the graph came to be (passes::Settings): explains why a
  // kernel is not in the cache.
  std::string settings{};
  passes::Fault fault{};  // for tests: of a kernel
  // Edited artifacts to be compiled instead of kernels, by kernel name; those
  // that fit no kernel are refused, or else passed over.
  std::map<std::string, KernelSubstitute> substitutes{};
  bool refuse_unused = true;
};

}  // namespace fusor::codegen
