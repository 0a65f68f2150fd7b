#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

namespace fusor::tools {

// A grid of measurements, each the log of a process of its own in the layout
// that `fusor report` reads.
struct SweepFlags {
  std::string folder;  // empty: no sweep
  std::vector<int64_t> ranks{1};
  std::vector<int64_t> batches;         // empty: that of the command
  std::vector<std::string> precisions;  // likewise
  std::vector<std::string> fusions;     // likewise
  int64_t runs = 5;
};
void AddSweepFlags(CLI::App& app, SweepFlags& flags);

struct SweepCell {
  int64_t batch = 0;
  std::string precision;  // fp32, bf16, fp16, amp
  std::string fusion;     // on, off
};

// Calls `measure` for each cell and run of the grid, `base` where the flags
// leave a list empty, in a forked process, with the file to print to; a log
// appears once it is whole, and one that is there is kept. A line on stdout for
// each. Throws what a cell throws, naming its log; ends at a signal.
void RunSweep(const SweepFlags& flags, const std::string& model,
              const SweepCell& base,
              const std::function<void(const SweepCell&, FILE*)>& measure);

}  // namespace fusor::tools
