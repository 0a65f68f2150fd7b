#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "passes/passes.h"
#include "tools/fusor/rank_run.h"

namespace fusor::tools {

// The flags of ranks that change what is compiled.
void AddCompiledRankFlags(CLI::App& app, RankFlags& flags);

// For commands that compile for ranks and do not run.
struct PlannedRanks {
  RankFlags flags;
  int64_t world_size = 1;
  int64_t local_size = 0;  // 0: all on one node
};
void AddPlannedRankFlags(CLI::App& app, PlannedRanks& ranks);
// Without those that change what is compiled.
void AddWorldFlags(CLI::App& app, PlannedRanks& ranks);

// What `world_size` ranks, `local_size` of them on a node, compile: wire,
// buckets, and what a sum costs by --cluster.
void SetRankOptions(const RankFlags& flags, int64_t world_size,
                    int64_t local_size, passes::PassOptions& passes);
// Throws kUsage unless all nodes have as many.
void SetRankOptions(const PlannedRanks& ranks, passes::PassOptions& passes);

// The options under these headings of --help by their first long name, given
// or not: what decides a run and must be the same on all ranks. Without those
// that each rank may have its own of, such as --workers.
std::map<std::string, std::string> RankSettings(
    const CLI::App& app, std::span<const std::string_view> headings);

// Of models: the ranks whose batches are normalised together.
int64_t NormRanks(const RankFlags& flags, int64_t world_size);

}  // namespace fusor::tools
