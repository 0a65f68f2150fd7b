#include "passes/pipeline.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <new>

#include "ir/support/environment.h"
#include "ir/support/error.h"
#include "ir/support/str.h"
#include "ir/verifier.h"
#include "passes/patterns/conv_rewrites.h"

namespace fusor::passes {
namespace {

constexpr PassEntry kPipeline[] = {
    {"simplify", Simplify, Stage::kForward, false,
     "canonicalises the graph for the patterns"},
    {"fuse_norm_activation", FuseNormActivation, Stage::kForward, true,
     "before autodiff, which differentiates the fused op"},
    {"rewrite_concats", RewriteConcats, Stage::kForward, false,
     "before autodiff, whose gradients of slices are pads"},
    {"autodiff", Autodiff, Stage::kTraining, false,
     "requires the plain forward graph"},
    {"accumulate_gradients", AccumulateGradients, Stage::kTraining, false,
     "accumulates in f32, before gradients are communicated"},
    {"compress_gradients", CompressGradients, Stage::kTraining, false,
     "after accumulation: casts only what is communicated"},
    {"shard_optimizer", ShardOptimizer, Stage::kTraining, false,
     "after compression; later passes work on shards"},
    {"scale_gradients", ScaleGradients, Stage::kTraining, false,
     "before the optimizer replaces the gradient outputs"},
    {"optimizer_update", OptimizerUpdate, Stage::kTraining, false,
     "replaces gradient outputs by state outputs"},
    {"skip_overflow", SkipOverflow, Stage::kTraining, false,
     "requires all state outputs"},
    {"simplify", Simplify, Stage::kTraining, false,
     "removes dead and duplicate nodes of gradient rules"},
    {"drop_stop_gradient", DropStopGradient, Stage::kOptimize, false,
     "for evaluation graphs, which autodiff does not process"},
    {"mask_pooled_gradient", MaskPooledGradient, Stage::kOptimize, true,
     "before casts separate the comparison from the pool's gradient"},
    {"mixed_precision", MixedPrecision, Stage::kOptimize, false,
     "assigns dtypes in the joint graph, gradients too, before layouts"},
    {"simplify", Simplify, Stage::kOptimize, false,
     "removes casts that cancel and folds casts of constants"},
    {"space_to_depth", SpaceToDepth, Stage::kOptimize, false,
     "after dtypes are known and before layouts are chosen"},
    {"assign_layout", AssignLayout, Stage::kOptimize, false,
     "before normalisations are lowered and ops are fused"},
    {"fuse_conv_epilogue", FuseConvEpilogue, Stage::kOptimize, true,
     "after layouts and algorithms, which it keeps"},
    {"fuse_matmul_epilogue", FuseMatmulEpilogue, Stage::kOptimize, true,
     "after layouts, before casts of biases are cached"},
    {"cache_weight_casts", CacheWeightCasts, Stage::kOptimize, false,
     "after layouts add casts and repacks, before updates are fused"},
    {"prefetch_parameters", PrefetchParameters, Stage::kOptimize, false,
     "after dtype and layout of each parameter read are known"},
    {"fuse_conv_norm", FuseConvNorm, Stage::kOptimize, true,
     "after layouts, which it keeps, and before normalisations are lowered"},
    {"lower_batch_norm", LowerBatchNorm, Stage::kOptimize, false,
     "after layouts, which treat a normalisation as one op"},
    {"simplify", Simplify, Stage::kOptimize, false,
     "merges common subexpressions of lowered normalisations"},
    {"sum_pooled_gradient", SumPooledGradient, Stage::kOptimize, true,
     "after normalisations are lowered to sums, before fusion"},
    {"fuse_pool", FusePool, Stage::kOptimize, true,
     "before general fusion: values fused with a pool are not stored"},
    {"fuse_contraction", FuseContraction, Stage::kOptimize, true,
     "before general fusion, which would store what contractions compute"},
    {"move_reshapes", MoveReshapes, Stage::kOptimize, true,
     "after library calls have their epilogues, before general fusion"},
    {"hoist_slices", HoistSlices, Stage::kOptimize, true,
     "after reshapes are out of the way, before general fusion"},
    {"fold_transposes", FoldTransposes, Stage::kOptimize, true,
     "after reshapes are beside library calls, before general fusion"},
    {"fuse", Fuse, Stage::kOptimize, false,
     "last pass on single ops; without fusion one kernel per op"},
    {"bucket_gradients", BucketGradients, Stage::kOptimize, false,
     "after kernels are known, which determine when gradients are ready, and "
     "before updates are fused by bucket"},
    {"fuse_updates", FuseUpdates, Stage::kOptimize, true,
     "fuses update kernels"},
    {"drop_collectives", DropCollectives, Stage::kOptimize, false,
     "after fusion, which must not merge gradients with updates"},
    {"generate_kernels", GenerateKernels, Stage::kOptimize, false,
     "last: copies of weights remain calls until updates absorb them"},
};

// Passes whose rewrites PassOptions::fuel cannot limit: after only some of them
// the graph would not be a valid program.
constexpr std::string_view kWhole[] = {
    "autodiff",         "accumulate_gradients", "compress_gradients",
    "shard_optimizer",  "scale_gradients",      "optimizer_update",
    "skip_overflow",    "assign_layout",        "bucket_gradients",
    "drop_collectives", "generate_kernels"};

constexpr std::string_view kStageNames[] = {"forward", "training", "optimize"};

// Returns one entry named `name`. Entries of equal name differ only in
// position.
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
  FUSOR_ASSERT(
      differs == changed, "it reported that it {} the graph, but it {}",
      changed ? "changed" : "kept", differs ? "changed it" : "did not");
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
    const bool verify = options_.verification != Verification::kOff;
    before_ = verify ? graph_.Clone() : nullptr;
    try {
      Apply(entry);
    } catch (const Error& error) {
      // A pass may reject user input; any other error is a bug.
      const bool rejected = error.code() != ErrorCode::kInternal;
      Fail(error.code(), rejected ? error.what() : Broken(error));
    } catch (const std::bad_alloc&) {
      throw;  // no fault of the pass
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

Verification DefaultVerification() {
#ifdef NDEBUG
  return EnvironmentFlag("FUSOR_VERIFY") ? Verification::kAll
                                         : Verification::kOff;
#else
  return Verification::kAll;
#endif
}

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
                "pass {} cannot be limited by fuel: it must run completely",
                name);
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
