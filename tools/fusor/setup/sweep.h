#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "runtime/distributed/rank_environment.h"

namespace fusor::tools {

// A grid of measurements, each the log of processes of its own in the layout
// that `fusor report` reads.
struct SweepFlags {
  std::string folder;                   // empty: no sweep
  std::vector<int64_t> ranks{1};        // of this host
  std::vector<int64_t> batches;         // empty: that of the command
  std::vector<std::string> precisions;  // likewise
  std::vector<std::string> fusions;     // likewise
  int64_t runs = 5;
};
void AddSweepFlags(CLI::App& app, SweepFlags& flags);

struct SweepCell {
  int64_t ranks = 1;
  int64_t batch = 0;      // of a rank
  std::string precision;  // fp32, bf16, fp16, amp
  std::string fusion;     // on, off
};

// What a process of a cell does: measures as the rank of that place and, as
// rank 0, prints to `log`; to the others it is null.
using MeasureCell = std::function<void(
    const SweepCell& cell, const runtime::RankEnvironment& place, FILE* log)>;

// Calls `measure` for each cell and run of the grid, `base` where the flags
// leave a list empty, in forked processes, one a rank; a log appears once it is
// whole, and one that is there is kept. A line on stdout for each. Throws what
// a cell throws, naming its log; ends at a signal.
void RunSweep(const SweepFlags& flags, const std::string& model,
              const SweepCell& base, const MeasureCell& measure);

}  // namespace fusor::tools
