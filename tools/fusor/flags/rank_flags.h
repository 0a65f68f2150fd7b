#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "passes/collectives/bucket_partition.h"

namespace fusor::tools {

struct RankFlags {
  passes::BucketPolicy buckets;
  std::string cluster = "ethernet-10g";
  std::string wire = "auto";
  bool sync_bn = false;
  bool sharded = false;
  bool deterministic = false;
  double timeout = 300;  // seconds
  std::string interface;
};
void AddRankFlags(CLI::App& app, RankFlags& flags);
void AddBucketPolicy(CLI::App& app, passes::BucketPolicy& buckets);
// Declares the flags that do not affect compilation.
void AddConnectionFlags(CLI::App& app, RankFlags& flags);

// Declares the flags that affect compilation.
void AddCompiledRankFlags(CLI::App& app, RankFlags& flags);

// For commands that compile for several ranks but do not run.
struct PlannedRanks {
  RankFlags flags;
  int64_t world_size = 1;
  int64_t local_size = 0;  // 0: all on one node
};
void AddPlannedRankFlags(CLI::App& app, PlannedRanks& ranks);
// Excludes the flags of AddCompiledRankFlags.
void AddWorldFlags(CLI::App& app, PlannedRanks& ranks);

// Returns the options under these --help headings, given or not, by first long
// name. They must be the same on all ranks. Excludes those that may differ per
// rank, such as --workers.
std::map<std::string, std::string> RankSettings(
    const CLI::App& app, std::span<const std::string_view> headings);

}  // namespace fusor::tools
