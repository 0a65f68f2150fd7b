#pragma once

#include <functional>
#include <span>
#include <string_view>

#include "passes/passes.h"

namespace fusor::passes {

// A training step runs all three in this order, an evaluation step kForward
// and kOptimize.
enum class Stage {
  kForward,   // decisions that differentiation is to follow
  kTraining,  // makes the joint forward, backward and update graph
  kOptimize,  // for the target at hand
};

std::string_view StageName(Stage stage);  // "forward", "training", "optimize"

struct PassEntry {
  std::string_view name;  // for PassOptions::disabled and fuel
  bool (*run)(ir::Graph&, PassContext&) = nullptr;
  Stage stage = Stage::kForward;
  bool fusion = false;      // skipped where PassOptions::fusion is off
  std::string_view reason;  // why it stands where it does
};

// All passes in the order in which they run; a pass may occur several times.
std::span<const PassEntry> Pipeline();

// Each pass once, in the order of its first place.
std::vector<std::string> PassNames();

// True when options let the pass run.
bool IsEnabled(const PassEntry& entry, const PassOptions& options);

// False for a pass that makes all of its rewrites or none.
bool TakesFuel(std::string_view pass);

// Throws kUsage, with the nearest name or all, when the options disable, select
// or limit a pass that does not exist.
void CheckPassNames(const PassOptions& options);

struct RunnerOptions {
  // Verifies the graph after each pass that changed it, and that each pass
  // tells the truth about having changed it; so does FUSOR_VERIFY=1.
#ifdef NDEBUG
  bool verify = false;
#else
  bool verify = true;
#endif
  // Called after each pass: for dumps. After one that failed, too, with the
  // trace's error set and the graph as the pass left it.
  std::function<void(const PassTrace&, const ir::Graph&)> observer;
  // Called when a pass has failed by a bug and graphs are verified, so that a
  // copy from before the pass is there.
  std::function<void(const PassTrace&, const ir::Graph& before,
                     const ir::Graph& after)>
      failure;
};

// Runs the passes of one stage that the context's options enable. True when
// one of them changed the graph. Throws kUsage, with the nearest name, when
// the options disable or limit a pass that does not exist; kInternal, naming
// the pass, when it fails or verification after it does.
bool RunPipeline(ir::Graph& graph, PassContext& context, Stage stage,
                 const RunnerOptions& options = {});

// The same for the passes of these names in this order; a pass may occur
// several times, and one that the options disable is skipped.
bool RunPasses(ir::Graph& graph, PassContext& context,
               std::span<const std::string> names,
               const RunnerOptions& options = {});

}  // namespace fusor::passes
