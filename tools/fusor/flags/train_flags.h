#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/train/training_loop.h"
#include "tools/fusor/flags/flag_groups.h"
#include "tools/fusor/flags/rank_flags.h"
#include "tools/fusor/flags/recipes.h"
#include "tools/fusor/output/train_logs.h"
#include "tools/fusor/setup/auto_config.h"
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
  RecipeFlags recipe;
  AutoFlags automatic;
  RankFlags ranks;
  runtime::TrainOptions options = {.epochs = 90};
  int64_t run_epochs = -1;
  int64_t prof = -1;
  int64_t optimizer_batch = -1;
  double stop_at_top1 = 0;  // percent; 0: off
  bool training_only = false;
  bool evaluate_only = false;
  std::string json;
  std::string program_file;  // program file to run; empty: compile the step
  // Set by SettleTrainFlags, by name: given options that affect the numbers;
  // settings that all ranks must share; all options, for logs.
  std::map<std::string, std::string> deciding;
  std::map<std::string, std::string> settings;
  std::map<std::string, std::string> parameters;
};
void AddTrainFlags(CLI::App& app, TrainFlags& flags);
// Declares those that do not affect compilation, e.g. data and checkpoints.
void AddRunFlags(CLI::App& app, TrainFlags& flags);
void AddOptimizerBatchFlag(CLI::App& app, int64_t& images);
// Call after parsing.
void SettleTrainFlags(const CLI::App& app, TrainFlags& flags);

// Returns the batches per update on each rank. Throws kUsage unless
// --optimizer-batch-size is a multiple of the images per step of all ranks.
int64_t MicroBatches(const TrainFlags& flags);

// Returns the options to train from `start` on.
runtime::TrainOptions MakeTrainOptions(const TrainFlags& flags,
                                       const runtime::TrainPosition& start,
                                       int64_t steps_per_epoch);

}  // namespace fusor::tools
