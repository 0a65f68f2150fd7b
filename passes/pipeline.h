#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "passes/passes.h"

namespace fusor::passes {

// A training step runs all three stages in this order; an evaluation step runs
// kForward and kOptimize.
enum class Stage {
  kForward,   // decisions that precede differentiation
  kTraining,  // makes the joint forward, backward and update graph
  kOptimize,  // for the target
};

std::string_view StageName(Stage stage);  // "forward", "training", "optimize"

struct PassEntry {
  std::string_view name;  // for PassOptions::disabled and fuel
  bool (*run)(ir::Graph&, PassContext&) = nullptr;
  Stage stage = Stage::kForward;
  bool fusion = false;      // skipped if PassOptions::fusion is off
  std::string_view reason;  // why it runs at this position
};

// Returns all passes in pipeline order; a pass may occur several times.
std::span<const PassEntry> Pipeline();

// Returns each pass once, in the order of first occurrence.
std::vector<std::string> PassNames();

// Returns true if the options let the pass run.
bool IsEnabled(const PassEntry& entry, const PassOptions& options);

// Returns false for a pass that cannot stop between two of its rewrites.
bool TakesFuel(std::string_view pass);

// Throws kUsage if the options disable, select or limit an unknown pass, with
// the nearest name or all names, or limit a pass that takes no fuel.
void CheckPassNames(const PassOptions& options);

// Checks in addition to those of the input graph, the final graph and the
// kernels, which always run.
enum class Verification : uint8_t {
  kOff,
  kPasses,  // the graph after each pass that changed it, and that each pass
            // reports changes correctly
  kAll,     // the plan, too; programs poison memory before kernels write it
};

// Returns kAll if FUSOR_VERIFY is set or in a debug build, otherwise kOff.
Verification DefaultVerification();

struct RunnerOptions {
  Verification verification = DefaultVerification();
  // Called after each pass, for dumps. Also called after a failed pass, with
  // the trace's error set and the graph as the pass left it.
  std::function<void(const PassTrace&, const ir::Graph&)> observer;
  // Called when a pass fails with an internal error while verification is on:
  // only then is there a copy of the graph from before the pass.
  std::function<void(const PassTrace&, const ir::Graph& before,
                     const ir::Graph& after)>
      failure;
};

// Runs the passes of one stage that the context's options enable. Returns true
// if one of them changed the graph. Throws as CheckPassNames does, and
// kInternal, naming the pass, if a pass or the verification after it fails.
// Errors that a pass reports about its input keep their code.
bool RunPipeline(ir::Graph& graph, PassContext& context, Stage stage,
                 const RunnerOptions& options = {});

// Runs the named passes in this order. A pass may occur several times; one that
// the options disable is skipped. Otherwise as RunPipeline.
bool RunPasses(ir::Graph& graph, PassContext& context,
               std::span<const std::string> names,
               const RunnerOptions& options = {});

}  // namespace fusor::passes
