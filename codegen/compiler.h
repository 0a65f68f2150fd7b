#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "codegen/cache_log.h"
#include "codegen/plan/plan.h"
#include "codegen/plan/plan_builder.h"
#include "codegen/target_compiler.h"
#include "ir/graph.h"
#include "passes/passes.h"

namespace fusor::codegen {

enum class ProgramKind {
  kTrain,  // forward with output "loss": differentiated and updated
  kEval,   // compiled as it is
  // Forward with output "loss": its gradients are added to those of earlier
  // micro-batches. A kTrain program with passes.micro_batches = kFinish, added
  // first, updates with them.
  kAccumulate,
};

// How far a graph has come: what it has behind it.
enum class GraphStage {
  kForward,    // a model as it was built
  kTrain,      // differentiated and updated
  kOptimized,  // through all passes: what is neither a fusion nor a library op
               // is a constant or a view
};

// What a graph looks like: one with fusions is optimised, one that gives
// parameters their next values is a training step.
GraphStage StageOf(const ir::Graph& graph);

struct CompiledProgram;

// Watches a compilation; what is not set is not called.
struct CompileObserver {
  // With "graph", "train", "optimized" and the graph at that stage.
  std::function<void(const std::string& stage, const ir::Graph&)> stage;
  // After each pass with the graph as it left it (passes/pipeline.h).
  std::function<void(const passes::PassTrace&, const ir::Graph&)> pass;
  // After a pass that failed where graphs are verified
  // (RunnerOptions::failure).
  std::function<void(const passes::PassTrace&, const ir::Graph& before,
                     const ir::Graph& after)>
      failure;
  // At the end.
  std::function<void(const CompiledProgram&, const TargetCompiler&)> program;
};

struct CompileOptions {
  passes::PassOptions passes;
  GraphStage start = GraphStage::kForward;  // of the graph to compile
  // State that this program shares with another; null: it decides.
  const StateLayout* state = nullptr;
  // Edited artifacts to be compiled instead of kernels, by kernel name. One
  // that is of no kernel of the program is refused with kUsage, or else passed
  // over (CompileReport::substituted tells).
  std::map<std::string, KernelSubstitute> substitutes;
  bool refuse_unused_substitutes = true;
  int64_t memory_limit_bytes = 0;  // 0: any size
  int threads = 0;                 // compile threads; 0: one a core
  std::string kernel_cache;        // folder; empty: none
  bool verify = false;             // every pass and the plan
  bool verify_passes = false;      // every pass
  bool plan_only = false;          // no machine code: not to be run
  bool pack_interface = false;     // see PackBitmasks: for steps run alone
  std::vector<CompileObserver> observers;  // called in this order
};

// What the compiler did, for people and --json.
struct CompileReport {
  std::vector<std::pair<std::string, double>> seconds;  // phase, in order
  std::map<std::string, int64_t> counters;  // bn_relu, weight_repacks, ...
  std::vector<passes::Decision> decisions;
  std::vector<passes::PassTrace> passes;  // in the order in which they ran
  int64_t nodes_forward = 0;              // of the model
  int64_t nodes_train = 0;                // after differentiation and update
  int64_t nodes_optimized = 0;            // after all passes
  int64_t fusions = 0;
  int64_t kernels = 0;  // launches a step
  int64_t distinct_kernels = 0;
  int64_t library_calls = 0;          // a step
  int64_t bytes_moved = 0;            // at least, a step
  int64_t forward_macs = 0;           // of one image
  int64_t bytes_saved = 0;            // not moved, thanks to fusion
  std::set<std::string> substituted;  // names of kernels that run edited code
  CacheReport cache;                  // of compiled kernels
  double total_seconds() const;
};

struct CompiledProgram {
  std::unique_ptr<ir::Graph> graph;  // after all passes
  Plan plan;
  CompileReport report;
};

// From a model's forward graph, or what options.start says, to a plan. Throws
// kGraph for what the target cannot do and for choices that were measured on
// another target, with other threads or another library version, kOutOfMemory
// above the limit.
CompiledProgram Compile(std::unique_ptr<ir::Graph> forward, ProgramKind kind,
                        const TargetCompiler& compiler,
                        const CompileOptions& options);

}  // namespace fusor::codegen
