#include "passes/pipeline.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "ir/support/environment.h"
#include "ir/support/error.h"
#include "ir/support/str.h"
#include "ir/verifier.h"
#include "passes/patterns/space_to_depth.h"

namespace fusor::passes {
namespace {

constexpr PassEntry kPipeline[] = {
    {"simplify", Simplify, Stage::kForward, false,
     "gives the patterns one form to match"},
    {"fuse_norm_activation", FuseNormActivation, Stage::kForward, true,
     "before differentiation, so that the gradient follows from the choice"},
    {"autodiff", Autodiff, Stage::kTraining, false,
     "needs the forward graph, and no more than it"},
    {"accumulate_gradients", AccumulateGradients, Stage::kTraining, false,
     "in f32, before anything is sent"},
    {"narrow_gradients", CompressGradients, Stage::kTraining, false,
     "what is sent, not what is added up on the way"},
    {"shard_optimizer", ShardOptimizer, Stage::kTraining, false,
     "of sums as they are sent; what follows works on parts"},
    {"scale_gradients", ScaleGradients, Stage::kTraining, false,
     "of gradient outputs, which the optimizer replaces"},
    {"optimizer_update", OptimizerUpdate, Stage::kTraining, false,
     "turns gradient outputs into state outputs"},
    {"skip_overflow", SkipOverflow, Stage::kTraining, false,
     "when all state outputs are there"},
    {"simplify", Simplify, Stage::kTraining, false,
     "drops what gradient rules built for nobody and merges what they repeat"},
    {"drop_stop_gradient", DropStopGradient, Stage::kOptimize, false,
     "an evaluation graph comes without differentiation"},
    {"mask_pooled_gradient", MaskPooledGradient, Stage::kOptimize, true,
     "while comparison and pool's gradient still meet, without casts"},
    {"mixed_precision", MixedPrecision, Stage::kOptimize, false,
     "on the joint graph, whose gradients it paints too, and before layouts"},
    {"simplify", Simplify, Stage::kOptimize, false,
     "drops the casts that cancel, folds those of constants"},
    {"fuse_conv_epilogue", FuseConvEpilogue, Stage::kOptimize, true,
     "before layouts: the library's candidates depend on it"},
    {"fuse_matmul_epilogue", FuseMatmulEpilogue, Stage::kOptimize, true,
     "when casts have settled, and before the copies of what a library reads"},
    {"space_to_depth", SpaceToDepth, Stage::kOptimize, false,
     "when dtypes are known, before the library is asked for layouts"},
    {"assign_layout", AssignLayout, Stage::kOptimize, false,
     "on whole normalisations, before anything is expanded or grouped"},
    {"keep_weight_copies", CacheWeightCasts, Stage::kOptimize, false,
     "of the casts and repacks that layouts ask for, before updates fuse"},
    {"rotate_gathers", PrefetchParameters, Stage::kOptimize, false,
     "when it is known what reads a parameter, in which dtype and layout"},
    {"fuse_conv_norm", FuseConvNorm, Stage::kOptimize, true,
     "when layouts are known, which it does not change, and before what it "
     "takes from normalisations is expanded"},
    {"lower_batch_norm", LowerBatchNorm, Stage::kOptimize, false,
     "after layouts, which treat a normalisation as one op"},
    {"simplify", Simplify, Stage::kOptimize, false,
     "shares what the lowered normalisations have in common"},
    {"sum_pooled_gradient", SumPooledGradient, Stage::kOptimize, true,
     "of the sums of lowered normalisations, before kernels hold them"},
    {"fuse_pool", FusePool, Stage::kOptimize, true,
     "before the rest is fused: what joins a pool is stored nowhere"},
    {"fuse", Fuse, Stage::kOptimize, false,
     "last to see single ops; with fusion off it makes kernels of one op"},
    {"bucket_gradients", BucketGradients, Stage::kOptimize, false,
     "when kernels are known, whose times say when gradients are ready, and "
     "before updates are joined bucket by bucket"},
    {"fuse_updates", FuseUpdates, Stage::kOptimize, true,
     "joins whole update fusions"},
    {"drop_collectives", DropCollectives, Stage::kOptimize, false,
     "kept until now so that gradients and updates stay apart in fusion"},
    {"generate_kernels", GenerateKernels, Stage::kOptimize, false,
     "of calls, which copies of weights are until updates take them"},
};

// Passes that cannot stop halfway: the graph would not be a valid program.
constexpr std::string_view kWhole[] = {
    "autodiff",         "accumulate_gradients", "narrow_gradients",
    "shard_optimizer",  "scale_gradients",      "optimizer_update",
    "skip_overflow",    "assign_layout",        "bucket_gradients",
    "drop_collectives", "generate_kernels"};

constexpr std::string_view kStageNames[] = {"forward", "training", "optimize"};

// Returns any entry of that name: they differ only in position.
const PassEntry& FindPass(const std::string& name) {
  for (const PassEntry& entry : kPipeline) {
    if (entry.name == name) return entry;
  }
  ThrowError(ErrorCode::kUsage, fmt::format("unknown pass {}{}", name,
                                            NameHint(name, PassNames())));
}

// `before` is a copy of the graph from before the pass.
void VerifyPass(const ir::Graph& before, const ir::Graph& graph, bool changed) {
  const bool differs = !SameGraph(before, graph);
  FUSOR_ASSERT(differs == changed, "it says it {} the graph, but it {}",
               changed ? "changed" : "kept",
               differs ? "changed it" : "did not");
  if (differs) ir::Verify(graph);
}

// Runs one pass; records and reports its trace even if the pass fails.
class PassRun {
 public:
  PassRun(ir::Graph& graph, PassContext& context, const RunnerOptions& options)
      : graph_(graph), context_(context), options_(options) {}

  bool Run(const PassEntry& entry, std::string_view pipeline, int index) {
    trace_.pipeline = std::string(pipeline);
    trace_.name = std::string(entry.name);
    trace_.index = index;
    trace_.nodes_before = graph_.nodes().size();
    const bool verify = options_.verify || EnvironmentFlag("FUSOR_VERIFY");
    before_ = verify ? graph_.Clone() : nullptr;
    try {
      Apply(entry);
    } catch (const Error& error) {
      // A pass may reject user input; any other error is a bug.
      const bool refused = error.code() != ErrorCode::kInternal;
      Fail(error.code(), refused ? error.what() : Broken(error));
    } catch (const std::exception& error) {
      Fail(ErrorCode::kInternal, Broken(error));
    }
    try {
      if (verify) VerifyPass(*before_, graph_, trace_.changed);
    } catch (const Error& error) {
      Fail(ErrorCode::kInternal,
           fmt::format("graph {}: verification failed after {} (pass {} of "
                       "{}): {}",
                       graph_.name(), trace_.name, index, pipeline,
                       error.what()));
    }
    Record();
    return trace_.changed;
  }

 private:
  void Apply(const PassEntry& entry) {
    const auto start = std::chrono::steady_clock::now();
    trace_.changed = entry.run(graph_, context_);
    trace_.changed |= context_.RunHook(trace_.name, graph_);
    const std::chrono::duration<double, std::milli> spent =
        std::chrono::steady_clock::now() - start;
    trace_.ms = spent.count();
  }

  std::string Broken(const std::exception& error) const {
    return fmt::format("graph {}: {} (pass {} of {}) failed: {}", graph_.name(),
                       trace_.name, trace_.index, trace_.pipeline,
                       error.what());
  }

  [[noreturn]] void Fail(ErrorCode code, const std::string& message) {
    trace_.error = message;
    Record();
    if (code == ErrorCode::kInternal && before_ != nullptr &&
        options_.failure) {
      options_.failure(trace_, *before_, graph_);
    }
    ThrowError(code, message);
  }

  void Record() {
    trace_.nodes_after = graph_.nodes().size();
    context_.traces().push_back(trace_);
    if (options_.observer) options_.observer(trace_, graph_);
  }

  ir::Graph& graph_;
  PassContext& context_;
  const RunnerOptions& options_;
  std::unique_ptr<ir::Graph> before_;  // set if graphs are verified
  PassTrace trace_;
};

}  // namespace

std::string_view StageName(Stage stage) {
  return kStageNames[static_cast<int>(stage)];
}

std::span<const PassEntry> Pipeline() { return kPipeline; }

std::vector<std::string> PassNames() {
  std::vector<std::string> names;
  for (const PassEntry& entry : kPipeline) {
    if (std::find(names.begin(), names.end(), entry.name) == names.end()) {
      names.emplace_back(entry.name);
    }
  }
  return names;
}

bool IsEnabled(const PassEntry& entry, const PassOptions& options) {
  const std::string name(entry.name);
  return (options.fusion || !entry.fusion) &&
         (options.only.empty() || options.only.contains(name)) &&
         !options.disabled.contains(name);
}

bool TakesFuel(std::string_view pass) {
  return std::find(std::begin(kWhole), std::end(kWhole), pass) ==
         std::end(kWhole);
}

void CheckPassNames(const PassOptions& options) {
  for (const std::string& name : options.disabled) FindPass(name);
  for (const std::string& name : options.only) FindPass(name);
  for (const auto& [name, fuel] : options.fuel) {
    FindPass(name);
    FUSOR_CHECK(TakesFuel(name), kUsage,
                "pass {} takes no fuel: all of it is needed", name);
  }
}

bool RunPipeline(ir::Graph& graph, PassContext& context, Stage stage,
                 const RunnerOptions& options) {
  CheckPassNames(context.options());
  bool changed = false;
  for (size_t i = 0; i < std::size(kPipeline); ++i) {
    const PassEntry& entry = kPipeline[i];
    if (entry.stage != stage || !IsEnabled(entry, context.options())) continue;
    changed |= PassRun(graph, context, options)
                   .Run(entry, StageName(stage), static_cast<int>(i));
  }
  return changed;
}

bool RunPasses(ir::Graph& graph, PassContext& context,
               std::span<const std::string> names,
               const RunnerOptions& options) {
  CheckPassNames(context.options());
  std::vector<const PassEntry*> entries;
  for (const std::string& name : names) entries.push_back(&FindPass(name));
  bool changed = false;
  for (const PassEntry* entry : entries) {
    if (!IsEnabled(*entry, context.options())) continue;
    changed |=
        PassRun(graph, context, options)
            .Run(*entry, "named", static_cast<int>(context.traces().size()));
  }
  return changed;
}

}  // namespace fusor::passes
