#pragma once

#include <cstdio>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include "codegen/compiler.h"
#include "runtime/program_file.h"
#include "runtime/session.h"
#include "runtime/train/training_loop.h"
#include "tools/fusor/flags/train_flags.h"

namespace fusor::tools {

// Callbacks and settings of a training run that are not flags.
struct TrainingHooks {
  FILE* text = nullptr;  // lines of rank 0; null: stdout, or stderr
  // Calls `step`, `interval` and `evaluated` after the logs have the report,
  // and polls `stop`. The run itself has the other callbacks.
  runtime::TrainObserver observer{};
  std::vector<codegen::CompileObserver> compile{};  // of each compilation
  // Does not measure the shares of a step's time at the end, since that runs
  // one more step.
  bool keeps_state = false;
};

// One run of `fusor train`, from the first check to the summary: data, compiled
// or loaded programs, checkpoints, logs and, with a launcher, ranks.
class TrainingRun {
 public:
  // With a program file, compiles nothing: runs its programs on the number of
  // ranks that they were compiled for. `flags` must then include the flags that
  // they were compiled with.
  TrainingRun(TrainFlags flags, std::optional<runtime::ProgramFile> file,
              TrainingHooks hooks = {});
  ~TrainingRun();
  TrainingRun(const TrainingRun&) = delete;
  TrainingRun& operator=(const TrainingRun&) = delete;

  // Call once. A stop request ends it early, with its state saved.
  void Run();

  // After Run: the trained state, and the keys that --json writes (null if the
  // run had no step).
  runtime::Session& session();
  const nlohmann::json& result() const;

 private:
  class Rank;
  std::unique_ptr<Rank> rank_;
};

}  // namespace fusor::tools
