#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "runtime/distributed/rank_environment.h"

namespace fusor::tools {

// A grid of measurements. Each is run in separate processes and writes a log in
// the layout that `fusor report` reads.
struct SweepFlags {
  std::string folder;                   // empty: no sweep
  std::vector<int64_t> ranks{1};        // on this host
  std::vector<int64_t> batches;         // empty: the command's
  std::vector<std::string> precisions;  // empty: the command's
  std::vector<std::string> fusions;     // empty: the command's
  int64_t runs = 5;
};
void AddSweepFlags(CLI::App& app, SweepFlags& flags);

struct SweepCell {
  int64_t ranks = 1;
  int64_t batch = 0;      // per rank
  std::string precision;  // fp32, bf16, fp16, amp
  std::string fusion;     // on, off
};

// Measures a cell as rank `place`. `log`: output of rank 0, null for others.
using MeasureCell = std::function<void(
    const SweepCell& cell, const runtime::RankEnvironment& place, FILE* log)>;

// Calls `measure` for each cell and run of the grid, in one forked process per
// rank. `base` provides the values of empty lists. A log is created only once
// it is complete; existing logs are kept. Prints a line per log to stdout.
// Throws what a cell throws, naming its log. Returns early on a stop signal.
void RunSweep(const SweepFlags& flags, const std::string& model,
              const SweepCell& base, const MeasureCell& measure);

}  // namespace fusor::tools
