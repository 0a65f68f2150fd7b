#pragma once

#include <cstdint>
#include <string>

#include "ir/target/cluster.h"
#include "passes/passes.h"
#include "tools/fusor/flags/rank_flags.h"

namespace fusor::tools {

// A built-in cluster, or a file that describes one.
ir::Cluster OpenCluster(const std::string& name);

// What `world_size` ranks, `local_size` of them on a node, compile: wire,
// buckets, and what a sum costs by --cluster.
void SetRankOptions(const RankFlags& flags, int64_t world_size,
                    int64_t local_size, passes::PassOptions& passes);
// Throws kUsage unless all nodes have as many.
void SetRankOptions(const PlannedRanks& ranks, passes::PassOptions& passes);

// Of models: the ranks whose batches are normalised together.
int64_t NormRanks(const RankFlags& flags, int64_t world_size);

}  // namespace fusor::tools
