#pragma once

#include <cstdint>
#include <unordered_map>

#include "codegen/lower_fusion.h"
#include "codegen/plan.h"
#include "codegen/target_compiler.h"
#include "ir/graph.h"
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
