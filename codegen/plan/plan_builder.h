#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "codegen/lower/lower.h"
#include "codegen/plan/plan.h"
#include "codegen/target_compiler.h"
#include "ir/graph.h"

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
  // matches no kernel is rejected if reject_unused is set, otherwise ignored.
  std::map<std::string, KernelSubstitute> substitutes{};
  bool reject_unused = true;
  bool verify = false;  // the plan against the graph
};

// Builds the plan of an optimised graph. Every node must be a fusion with a
// lowered kernel, a library op that the target prepares, a collective, a view
// (IsView) or a constant. Inserts copies into the graph (copy_insertion.h), so
// that each of its nodes, except views and constants, is a step of the plan
// with the name of its first result. Deterministic. CompileKernels adds the
// kernels' machine code later.
//
// Throws kGraph if the target does not support an op or the state layout lacks
// an input. Throws kOutOfMemory above the limit, naming the five largest
// buffers at the peak. Throws kInternal if a kernel's spans cannot be laid out.
Plan BuildPlan(ir::Graph& graph, const LoweredNodes& lowered,
               const TargetCompiler& compiler, const PlanOptions& options = {});

}  // namespace fusor::codegen
