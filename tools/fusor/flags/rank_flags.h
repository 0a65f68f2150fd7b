#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace fusor::tools {

struct RankFlags {
  std::string buckets = "exact";
  std::string cluster = "ethernet-10g";
  std::string wire = "auto";
  bool sync_bn = false;
  bool sharded = false;
  bool deterministic = false;
  double timeout = 300;  // seconds
  std::string interface;
};
void AddRankFlags(CLI::App& app, RankFlags& flags);
// Those of them that change nothing of what is compiled.
void AddConnectionFlags(CLI::App& app, RankFlags& flags);

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

// The options under these headings of --help by their first long name, given
// or not: what decides a run and must be the same on all ranks. Without those
// that each rank may have its own of, such as --workers.
std::map<std::string, std::string> RankSettings(
    const CLI::App& app, std::span<const std::string_view> headings);

}  // namespace fusor::tools
