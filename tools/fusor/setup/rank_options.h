#pragma once

#include <cstdint>
#include <string>

#include "ir/target/cluster.h"
#include "passes/passes.h"
#include "tools/fusor/flags/rank_flags.h"

namespace fusor::tools {

// Returns the built-in cluster of that name, or reads the file `name`.
ir::Cluster OpenCluster(const std::string& name);

// Sets the options for `world_size` ranks with `local_size` ranks per node:
// communication dtype, buckets, and all-reduce cost by --cluster.
void SetRankOptions(const RankFlags& flags, int64_t world_size,
                    int64_t local_size, passes::PassOptions& passes);
// As above. Throws kUsage unless all nodes have equally many ranks.
void SetRankOptions(const PlannedRanks& ranks, passes::PassOptions& passes);

// Returns ModelOptions::norm_ranks, the ranks normalised together.
int64_t NormRanks(const RankFlags& flags, int64_t world_size);

}  // namespace fusor::tools
