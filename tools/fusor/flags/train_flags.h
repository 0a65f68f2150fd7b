#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "runtime/train/training_loop.h"
#include "tools/fusor/flags/flag_groups.h"
#include "tools/fusor/flags/ignored_flags.h"
#include "tools/fusor/flags/rank_flags.h"
#include "tools/fusor/output/train_logs.h"
#include "tools/fusor/setup/checkpointing.h"
#include "tools/fusor/setup/debugging.h"

namespace fusor::tools {

struct TrainFlags {
  ModelFlags model;
  CompileFlags compile;
  OptimizerFlags optimizer;
  DataFlags data;
  DebugFlags debug;
  CheckpointFlags checkpoint;
  LogFlags log;
  IgnoredFlags ignored;
  RankFlags ranks;
  int64_t epochs = 90;
  int64_t iterations = -1;
  int64_t run_epochs = -1;
  int64_t prof = -1;
  int64_t print_every = 10;
  int64_t eval_every = 1;
  int64_t optimizer_batch = -1;
  double stop_at_top1 = 0;  // percent; 0: do not
  bool training_only = false;
  std::string json;
  std::string step_file;  // that is run; empty: the step is compiled
  // Filled in by SettleTrainFlags: what was given of what decides the numbers
  // that the run computes, and all that logs should know, by name.
  std::map<std::string, std::string> deciding;
  std::map<std::string, std::string> settings;  // of all ranks
  std::map<std::string, std::string> parameters;
};
void AddTrainFlags(CLI::App& app, TrainFlags& flags);
// Of them those that decide nothing about what is compiled: data, schedule,
// length, checkpoints, logs.
void AddRunFlags(CLI::App& app, TrainFlags& flags);
// --optimizer-batch-size
void AddOptimizerBatchFlag(CLI::App& app, int64_t& images);
// After parsing.
void SettleTrainFlags(const CLI::App& app, TrainFlags& flags);

// Batches of one update on each rank. Throws kUsage when --optimizer-batch-size
// is no multiple of a batch.
int64_t MicroBatches(const TrainFlags& flags);

// How to train with `steps_per_epoch` from `start` on.
runtime::TrainOptions MakeTrainOptions(const TrainFlags& flags,
                                       const runtime::TrainPosition& start,
                                       int64_t steps_per_epoch);

}  // namespace fusor::tools
