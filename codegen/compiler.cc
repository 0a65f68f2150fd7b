#include "codegen/compiler.h"

#include <chrono>

#include "codegen/compile_kernels.h"
#include "codegen/kernel/access_analysis.h"
#include "codegen/kernel/cache_hints.h"
#include "codegen/lower/lower.h"
#include "codegen/plan/plan_builder.h"
#include "ir/library_fusion.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "ir/support/parallel_for.h"
#include "ir/target/autotune_results.h"
#include "ir/target/cost.h"
#include "ir/verifier.h"
#include "passes/fusion/iteration_domain.h"
#include "passes/passes.h"
#include "passes/pipeline.h"

namespace fusor::codegen {
namespace {

// Throws kGraph unless the autotune results are empty, or were measured for
// this target, number of threads and library version.
void CheckOrigin(const ir::AutotuneResults& choices,
                 const TargetCompiler& compiler) {
  if (choices.empty()) return;
  const ir::AutotuneResults::Origin& origin = choices.origin;
  const ir::Target& target = compiler.target();
  const std::string threads = std::to_string(target.threads);
  const std::string of_origin = std::to_string(origin.threads);
  const std::string library = compiler.LibraryVersion();
  struct Fact {
    std::string_view what, expected, got;
  };
  const std::array<Fact, 3> facts = {{{"target", target.name, origin.target},
                                      {"number of threads", threads, of_origin},
                                      {"library", library, origin.library}}};
  for (const auto& [what, expected, got] : facts) {
    FUSOR_CHECK(expected == got, kGraph,
                "autotune results {}: measured with another {}: expected {}, "
                "got {}; measure again with --tune",
                origin.file, what, expected, got);
  }
}

class Stopwatch {
 public:
  // Returns the seconds since the last call, or since the start.
  double Lap() {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    return seconds;
  }

 private:
  std::chrono::steady_clock::time_point last_ =
      std::chrono::steady_clock::now();
};

// Returns the memory traffic that fusion avoids: the bytes that the nodes of
// fusions would move as unfused kernels, minus those of the fusions.
int64_t BytesSaved(const ir::Graph& graph) {
  int64_t saved = 0;
  for (const auto& node : graph.nodes()) {
    if (!ir::IsKernelFusion(*node)) continue;
    for (const auto& inner : node->body()->nodes()) {
      if (!passes::IsFree(*inner)) saved += NodeBytes(*inner);
    }
    saved -= NodeBytes(*node);
  }
  return saved;
}

int64_t BatchOf(const ir::Graph& graph) {
  const ir::Value* images = graph.FindInput("images");
  if (images == nullptr || images->type().rank() == 0) return 1;
  return images->type().shape[0];
}

void CountSteps(const Plan& plan, CompileReport& report) {
  report.distinct_kernels = static_cast<int64_t>(plan.kernels.size());
  for (const Step& step : plan.steps) {
    if (step.kind == StepKind::kLaunch) ++report.kernels;
    if (step.kind == StepKind::kLibrary) ++report.library_calls;
    report.bytes_moved += step.bytes;
  }
}

LoweredNodes LowerFusions(const ir::Graph& graph, const ir::Target& target) {
  LoweredNodes lowered;
  for (const auto& node : graph.nodes()) {
    if (!ir::IsKernelFusion(*node)) continue;
    lowered.emplace(node.get(), LowerFusion(*node, target));
  }
  return lowered;
}

// Verifies what CompileKernels does not.
void VerifyKernels(const LoweredNodes& lowered, const CompileOptions& options) {
  for (const auto& [node, kernel] : lowered) {
    if (options.plan_only) Verify(kernel.kernel);
    CheckResults(kernel);
  }
}

passes::RunnerOptions MakeRunner(const CompileOptions& options) {
  passes::RunnerOptions runner;
  runner.verification = options.verification;
  runner.observer = [&options](const passes::PassTrace& trace,
                               const ir::Graph& graph) {
    for (const CompileObserver& observer : options.observers) {
      if (observer.pass) observer.pass(trace, graph);
    }
  };
  runner.failure = [&options](const passes::PassTrace& trace,
                              const ir::Graph& before, const ir::Graph& after) {
    for (const CompileObserver& observer : options.observers) {
      if (observer.failure) observer.failure(trace, before, after);
    }
  };
  return runner;
}

PlanOptions MakePlanOptions(const CompileOptions& options,
                            const passes::PassOptions& pass_options) {
  PlanOptions plan_options;
  plan_options.state = options.state;
  plan_options.memory_limit_bytes = options.memory_limit_bytes;
  plan_options.threads = options.threads;
  plan_options.kernel_cache = options.kernel_cache;
  plan_options.verify = options.verification == passes::Verification::kAll;
  plan_options.settings = passes::Settings(pass_options);
  if (std::shared_ptr<const passes::RewriteHook> hook =
          passes::MakeRewriteHook(pass_options.hook)) {
    plan_options.alter_kernel = [hook](Kernel& kernel) {
      hook->AlterKernel(kernel);
    };
  }
  plan_options.substitutes = options.substitutes;
  plan_options.reject_unused = options.reject_unused_substitutes;
  return plan_options;
}

}  // namespace

GraphStage StageOf(const ir::Graph& graph) {
  for (const auto& node : graph.nodes()) {
    if (node->body() != nullptr) return GraphStage::kOptimized;
  }
  for (const ir::Output& output : graph.outputs()) {
    if (output.alias >= 0 && IsParameter(graph.inputs()[output.alias].role)) {
      return GraphStage::kTrain;
    }
  }
  return GraphStage::kForward;
}

double CompileReport::total_seconds() const {
  double total = 0;
  for (const auto& [phase, spent] : seconds) total += spent;
  return total;
}

CompiledProgram Compile(std::unique_ptr<ir::Graph> forward, ProgramKind kind,
                        const TargetCompiler& compiler,
                        const CompileOptions& options) {
  FUSOR_CHECK(forward != nullptr, kGraph,
              "compile: expected a graph, got null");
  CompiledProgram program;
  CompileReport& report = program.report;
  const auto observe = [&](const char* stage) {
    for (const CompileObserver& observer : options.observers) {
      if (observer.stage) observer.stage(stage, *forward);
    }
  };
  Stopwatch watch;
  ir::Verify(*forward);
  CheckOrigin(options.passes.choices, compiler);
  observe("graph");
  report.nodes_forward = static_cast<int64_t>(forward->nodes().size());
  report.forward_macs = ir::GraphMacs(*forward) / BatchOf(*forward);

  passes::PassOptions pass_options = options.passes;
  if (options.state != nullptr) {
    for (const StateLayout::Entry& entry : options.state->entries) {
      pass_options.state_places[entry.name] = {entry.type.layout, entry.offset};
    }
  }
  if (kind == ProgramKind::kAccumulate) {
    pass_options.micro_batches = passes::MicroBatches::kAdd;
  }
  passes::PassContext context(compiler, pass_options);
  const passes::RunnerOptions runner = MakeRunner(options);
  if (options.start == GraphStage::kForward) {
    RunPipeline(*forward, context, passes::Stage::kForward, runner);
    if (kind != ProgramKind::kEval) {
      RunPipeline(*forward, context, passes::Stage::kTraining, runner);
      observe("train");
    }
  }
  report.nodes_train = static_cast<int64_t>(forward->nodes().size());
  report.seconds.emplace_back("differentiate", watch.Lap());
  if (options.start != GraphStage::kOptimized) {
    RunPipeline(*forward, context, passes::Stage::kOptimize, runner);
  }
  ir::Verify(*forward);
  observe("optimized");
  report.nodes_optimized = static_cast<int64_t>(forward->nodes().size());
  report.seconds.emplace_back("optimize", watch.Lap());

  LoweredNodes lowered = LowerFusions(*forward, compiler.target());
  PackBitmasks(*forward, lowered, options.pack_interface);
  for (auto& [node, kernel] : lowered) {
    SetCacheHints(compiler.target(), kernel.kernel);
  }
  VerifyKernels(lowered, options);
  report.fusions = static_cast<int64_t>(lowered.size());
  report.bytes_saved = BytesSaved(*forward);
  report.seconds.emplace_back("lower", watch.Lap());

  const PlanOptions plan_options = MakePlanOptions(options, context.options());
  program.plan = BuildPlan(*forward, lowered, compiler, plan_options);
  program.plan.choices = pass_options.choices.Hash();
  report.seconds.emplace_back("plan", watch.Lap());
  if (!options.plan_only) {
    KernelsReport kernels =
        CompileKernels(program.plan, compiler, plan_options);
    report.substituted = std::move(kernels.substituted);
    report.cache = std::move(kernels.cache);
  }
  report.seconds.emplace_back("generate code", watch.Lap());

  CountSteps(program.plan, report);
  report.counters = context.counters();
  report.decisions = context.decisions();
  report.passes = context.traces();
  program.graph = std::move(forward);
  for (const CompileObserver& observer : options.observers) {
    if (observer.program) observer.program(program, compiler);
  }
  return program;
}

}  // namespace fusor::codegen
