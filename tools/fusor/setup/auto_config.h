#pragma once

#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "runtime/distributed/rank_environment.h"
#include "tools/fusor/flags/flag_groups.h"
#include "tools/fusor/flags/model_flags.h"
#include "tools/fusor/flags/rank_flags.h"
#include "tools/fusor/setup/auto_search.h"

namespace fusor::tools {

struct AutoFlags {
  bool on = false;
  double budget = 60;  // seconds
  // Filled in by the parser: given flags, "--amp". They are not searched.
  std::vector<std::string> given;
};
void AddAutoFlags(CLI::App& app, AutoFlags& flags);
// Call after parsing.
void SettleAutoFlags(const CLI::App& app, AutoFlags& flags);

// A configuration to measure.
struct AutoStep {
  ModelFlags model;
  CompileFlags compile;
  RankFlags ranks;
  DataFlags data;  // no path: synthetic images
};

// Measures a configuration on `place` in this process, a child, and returns
// images per second of all ranks. `seconds`: about how long a step takes.
using MeasureAuto =
    std::function<double(const AutoStep& step, double seconds,
                         const runtime::RankEnvironment& place)>;

// Searches batch size, precision, Winograd, fusion, batch-norm lowering and
// convolution algorithms of a training step, with a data set the loader's
// threads, and with several ranks the buckets of gradients, except those that
// are given, in about flags.budget seconds. Plans and measures in child
// processes. Prints the table of what was tried to `text`, and writes the
// winner to `file` as autotune results with settings. Returns {"file",
// "settings", "trials"}, or null after a stop signal, without writing. Throws
// kUsage if the file cannot be written or the default cannot run.
//
// `place`: this process's, rank 0. Of several ranks, those of this host are
// measured; the buckets for all of them are judged by the model of fusor scale.
nlohmann::json ChooseConfiguration(const AutoFlags& flags, const AutoStep& base,
                                   const OptimizerFlags& optimizer,
                                   const MeasureAuto& measure,
                                   const runtime::RankEnvironment& place,
                                   const std::string& file, FILE* text);

// For `fusor train --auto`: measures by `fusor bench --auto` with the flags of
// `train` that it has, unless `file` exists, and then starts this program anew,
// without --auto and with --choices `file`. Ranks other than 0 wait for the
// file. Does not return if successful; ends the process with the exit code of a
// failed measurement.
void ChooseAndRestart(const CLI::App& train, const AutoFlags& flags, int rank,
                      const std::string& file, FILE* text);

}  // namespace fusor::tools
