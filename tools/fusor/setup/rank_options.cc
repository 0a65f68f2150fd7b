#include "tools/fusor/setup/rank_options.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "ir/support/error.h"
#include "ir/support/file.h"
#include "tools/inspect/scaling/scale_model.h"

namespace fusor::tools {

ir::Cluster OpenCluster(const std::string& name) {
  std::error_code unreadable;
  if (!std::filesystem::exists(name, unreadable)) return ir::FindCluster(name);
  std::vector<uint8_t> bytes;
  ReadFile(name, ErrorCode::kUsage, bytes);
  return ir::ParseCluster(std::string(bytes.begin(), bytes.end()), name);
}

void SetRankOptions(const RankFlags& flags, int64_t world_size,
                    int64_t local_size, passes::PassOptions& passes) {
  passes.world_size = static_cast<int>(world_size);
  passes.buckets = passes::ParseBucketPolicy("--bucket-policy", flags.buckets);
  const int64_t nodes = std::max<int64_t>(1, world_size / local_size);
  passes.collective_cost = codegen::AllReduceCost(OpenCluster(flags.cluster),
                                                  nodes, world_size / nodes);
  passes.shard_optimizer = flags.sharded;
  // One rank accumulates micro-batches in f32; 16-bit all-reduces would not be
  // bit-identical to it.
  const bool exact = flags.deterministic && !passes.precision.narrow_gradients;
  if (flags.wire == "fp32" || (flags.wire == "auto" && exact)) {
    passes.precision.wire = ir::DType::kF32;
  }
  if (flags.wire == "fp16") passes.precision.wire = ir::DType::kF16;
  if (flags.wire == "bf16") passes.precision.wire = ir::DType::kBF16;
}

void SetRankOptions(const PlannedRanks& ranks, passes::PassOptions& passes) {
  const int64_t local =
      ranks.local_size == 0 ? ranks.world_size : ranks.local_size;
  FUSOR_CHECK(ranks.world_size % local == 0, kUsage,
              "--world-size {}: expected a multiple of --nproc-per-node {}",
              ranks.world_size, local);
  SetRankOptions(ranks.flags, ranks.world_size, local, passes);
}

int64_t NormRanks(const RankFlags& flags, int64_t world_size) {
  return flags.sync_bn ? world_size : 1;
}

}  // namespace fusor::tools
