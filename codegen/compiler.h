#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "codegen/kernel_cache.h"
#include "codegen/plan/plan.h"
#include "codegen/plan/plan_builder.h"
#include "codegen/target_compiler.h"
#include "ir/graph.h"
#include "passes/pipeline.h"

namespace fusor::codegen {

enum class ProgramKind {
  kTrain,  // forward with output "loss": differentiated and updated
  kEval,   // compiled without gradients or update
  // Forward with output "loss". Adds its gradients to those of earlier
  // micro-batches. A kTrain program with passes.micro_batches = kFinish uses
  // the sums for the update; add it to the session first.
  kAccumulate,
};

// The last stage of compilation that a graph has passed.
enum class GraphStage {
  kForward,    // a model as it was built
  kTrain,      // with gradients and optimizer update
  kOptimized,  // after all passes: fusions, library ops, constants and views
};

// Infers the stage: a graph with fusions is kOptimized, one that outputs new
// values of parameters is kTrain.
GraphStage StageOf(const ir::Graph& graph);

struct CompiledProgram;

// Callbacks of a compilation; unset ones are skipped.
struct CompileObserver {
  // Called with "graph", "train", "optimized" and the graph at that stage.
  std::function<void(const std::string& stage, const ir::Graph&)> stage;
  // Called after each pass with its result (passes/pipeline.h).
  std::function<void(const passes::PassTrace&, const ir::Graph&)> pass;
  // Called after a pass that failed, if graphs are verified
  // (RunnerOptions::failure).
  std::function<void(const passes::PassTrace&, const ir::Graph& before,
                     const ir::Graph& after)>
      failure;
  // Called at the end.
  std::function<void(const CompiledProgram&, const TargetCompiler&)> program;
};

struct CompileOptions {
  passes::PassOptions passes;
  GraphStage start = GraphStage::kForward;  // of the input graph
  // Layout of state shared with another program; null: this program decides.
  const StateLayout* state = nullptr;
  // Edited artifacts to compile instead of kernels, by kernel name. One that
  // does not match a kernel of the program is an error (kUsage) or, without
  // reject_unused_substitutes, ignored (see CompileReport::substituted).
  std::map<std::string, KernelSubstitute> substitutes;
  bool reject_unused_substitutes = true;
  int64_t memory_limit_bytes = 0;  // 0: no limit
  int threads = 0;                 // compile threads; 0: one per core
  std::string kernel_cache;        // folder; empty: none
  passes::Verification verification = passes::DefaultVerification();
  bool plan_only = false;       // no machine code; cannot be run
  bool pack_interface = false;  // PackBitmasks' `interface`; for single steps
  std::vector<CompileObserver> observers;  // called in this order
};

// Statistics of a compilation, for the console and --json.
struct CompileReport {
  std::vector<std::pair<std::string, double>> seconds;  // by phase, in order
  std::map<std::string, int64_t> counters;  // bn_relu, weight_repacks, ...
  std::vector<passes::Decision> decisions;
  std::vector<passes::PassTrace> passes;  // in order of execution
  int64_t nodes_forward = 0;              // of the model
  int64_t nodes_train = 0;                // after differentiation and update
  int64_t nodes_optimized = 0;            // after all passes
  int64_t fusions = 0;
  int64_t kernels = 0;  // launches per step
  int64_t distinct_kernels = 0;
  int64_t library_calls = 0;          // per step
  int64_t bytes_moved = 0;            // per step: operands and results
  int64_t forward_macs = 0;           // per image
  int64_t bytes_saved = 0;            // memory traffic avoided by fusion
  std::set<std::string> substituted;  // names of kernels that run edited code
  CacheReport cache;                  // of compiled kernels
  double total_seconds() const;
};

struct CompiledProgram {
  std::unique_ptr<ir::Graph> graph;  // after all passes
  Plan plan;
  CompileReport report;
};

// Compiles a model's forward graph, or a graph at stage options.start, to a
// plan. Throws kGraph if the target does not support it, or if autotune results
// were measured on another target, with another number of threads or another
// library version. Throws kOutOfMemory above memory_limit_bytes.
CompiledProgram Compile(std::unique_ptr<ir::Graph> forward, ProgramKind kind,
                        const TargetCompiler& compiler,
                        const CompileOptions& options);

}  // namespace fusor::codegen
