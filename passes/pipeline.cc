#include "passes/pipeline.h"

#include <algorithm>
#include <chrono>

#include "ir/support/error.h"
#include "ir/support/str.h"
#include "ir/verifier.h"

namespace fusor::passes {
namespace {

// Mixed precision will stand at the head of kOptimize: casts must be there
// before layouts are chosen, and its gradients before buckets. Gradient buckets
// will stand before fuse_updates, which joins the updates of one bucket.
constexpr PassEntry kPipeline[] = {
    {"simplify", Simplify, Stage::kForward, false,
     "gives the patterns one form to match"},
    {"fuse_norm_activation", FuseNormActivation, Stage::kForward, true,
     "before differentiation, so that the gradient follows from the choice"},
    {"autodiff", Autodiff, Stage::kTraining, false,
     "needs the forward graph, and no more than it"},
    {"optimizer_update", OptimizerUpdate, Stage::kTraining, false,
     "turns gradient outputs into state outputs"},
    {"simplify", Simplify, Stage::kTraining, false,
     "drops what gradient rules built for nobody and merges what they repeat"},
    {"drop_stop_gradient", DropStopGradient, Stage::kOptimize, false,
     "an evaluation graph comes without differentiation"},
    {"fuse_conv_epilogue", FuseConvEpilogue, Stage::kOptimize, true,
     "before layouts: the library's candidates depend on it"},
    {"assign_layout", AssignLayout, Stage::kOptimize, false,
     "on whole normalisations, before anything is expanded or grouped"},
    {"lower_batch_norm", LowerBatchNorm, Stage::kOptimize, false,
     "after layouts, which treat a normalisation as one op"},
    {"simplify", Simplify, Stage::kOptimize, false,
     "shares what the lowered normalisations have in common"},
    {"fuse", Fuse, Stage::kOptimize, false,
     "last to see single ops; with fusion off it makes kernels of one op"},
    {"fuse_updates", FuseUpdates, Stage::kOptimize, true,
     "joins whole update fusions"},
    {"drop_collectives", DropCollectives, Stage::kOptimize, false,
     "kept until now so that gradients and updates stay apart in fusion"},
};

// Half of their work would leave no program.
constexpr std::string_view kWhole[] = {"autodiff", "optimizer_update",
                                       "assign_layout", "drop_collectives"};

void CheckName(const std::string& name) {
  std::vector<std::string> names;
  for (const PassEntry& entry : kPipeline) names.emplace_back(entry.name);
  if (std::find(names.begin(), names.end(), name) != names.end()) return;
  const std::string nearest = NearestName(name, names);
  FUSOR_CHECK(false, kUsage, "unknown pass {}{}", name,
              nearest.empty() ? "" : "; did you mean " + nearest + "?");
}

void CheckFuel(const std::string& name) {
  CheckName(name);
  FUSOR_CHECK(TakesFuel(name), kUsage,
              "pass {} takes no fuel: all of it is needed", name);
}

// `before` is a copy from before the pass.
void VerifyPass(const ir::Graph& before, const ir::Graph& graph,
                const PassTrace& trace) {
  const bool changed = !SameGraph(before, graph);
  FUSOR_ASSERT(changed == trace.changed,
               "pass {} (number {}) says it {} graph {}, but it {}", trace.name,
               trace.index, trace.changed ? "changed" : "kept", graph.name(),
               changed ? "changed it" : "did not");
  if (!changed) return;
  try {
    ir::Verify(graph);
  } catch (const Error& error) {
    FUSOR_ASSERT(false, "pass {} (number {}) broke graph {}: {}", trace.name,
                 trace.index, graph.name(), error.what());
  }
}

PassTrace RunPass(const PassEntry& entry, int index, ir::Graph& graph,
                  PassContext& context, bool verify) {
  PassTrace trace;
  trace.name = std::string(entry.name);
  trace.index = index;
  trace.nodes_before = graph.nodes().size();
  const auto before = verify ? graph.Clone() : nullptr;
  const auto start = std::chrono::steady_clock::now();
  trace.changed = entry.run(graph, context);
  trace.changed |= context.FinishFault(trace.name, graph);
  const std::chrono::duration<double, std::milli> spent =
      std::chrono::steady_clock::now() - start;
  trace.ms = spent.count();
  trace.nodes_after = graph.nodes().size();
  if (verify) VerifyPass(*before, graph, trace);
  return trace;
}

}  // namespace

std::span<const PassEntry> Pipeline() { return kPipeline; }

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

bool RunPipeline(ir::Graph& graph, PassContext& context, Stage stage,
                 const RunnerOptions& options) {
  for (const std::string& name : context.options().disabled) CheckName(name);
  for (const std::string& name : context.options().only) CheckName(name);
  for (const auto& [name, fuel] : context.options().fuel) CheckFuel(name);
  bool changed = false;
  for (size_t i = 0; i < std::size(kPipeline); ++i) {
    const PassEntry& entry = kPipeline[i];
    if (entry.stage != stage || !IsEnabled(entry, context.options())) continue;
    const PassTrace trace =
        RunPass(entry, static_cast<int>(i), graph, context, options.verify);
    context.traces().push_back(trace);
    changed |= trace.changed;
    if (options.observer) options.observer(trace, graph);
  }
  return changed;
}

}  // namespace fusor::passes
