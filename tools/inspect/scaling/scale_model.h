#pragma once

// Estimates the step time on N nodes with G devices each, from the step's
// timeline on one device, the gradient all-reduces overlapped with it, and the
// input rate. One collective runs at a time, in ready order, at the cluster's
// speed. Collectives do not slow down the computation.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/target/cluster.h"
#include "passes/collectives/bucket_partition.h"
#include "tools/inspect/scaling/step_timeline.h"

namespace fusor::codegen {

// Returns the cost of an all-reduce by NCCL's model (src/graph/tuning.cc). A
// ring sends the bytes 2 (n-1) / n times over each link and adds the latency of
// 2 (n-1) hops. A tree, for several nodes if the cluster has one, sends them
// twice.
passes::CollectiveCost AllReduceCost(const ir::Cluster& cluster, int64_t nodes,
                                     int64_t gpus);

struct ScaleOptions {
  int64_t nodes = 1;
  int64_t gpus = 1;             // ranks per node
  int64_t batch = 1;            // per rank
  passes::BucketPolicy policy;  // element_bytes: of the communication dtype
  // Sharded optimizer: reduce-scatter, update of the rank's shard, all-gather
  // overlapped with the next forward pass (Rajbhandari et al.: "ZeRO", 2020,
  // stage 1), instead of all-reduce.
  bool sharded = false;
  double input_rate = 0;  // images/s that one node can read; 0: unlimited
  // Measured images/s of one node; 0: none. Its deficit against the estimate is
  // assumed to be the same share of the step on several nodes. The cluster's
  // jitter is then ignored.
  double node_rate = 0;
};

enum class ScaleLimit : uint8_t { kCompute, kCommunication, kInput };
std::string_view LimitName(ScaleLimit limit);

struct ScalePrediction {
  std::vector<passes::GradientBucket> buckets;
  // For a sharded optimizer: when all of a bucket's parameters are gathered,
  // from the start of the next forward pass. Gathers have separate buckets.
  std::vector<double> gathered;
  double exposed = 0;  // seconds of communication that is not overlapped
  double waiting = 0;  // seconds for the slowest rank, or by the node rate
  double starved = 0;  // seconds of waiting for input
  double step = 0;     // seconds, including all of these
  double images_per_second = 0;  // of all ranks
  double speedup = 0;            // over one rank's step
  // The largest cause of less than perfect speedup: communication or input.
  // kCompute if both take at most 1 % of the step.
  ScaleLimit limit = ScaleLimit::kCompute;
};

ScalePrediction PredictScale(const StepTimeline& timeline,
                             const ir::Cluster& cluster,
                             const ScaleOptions& options);

// Variations of the options: each bucket policy, the other communication dtype
// (fp32 or 16 bit), the sharded optimizer. The chosen options come first.
struct ScaleAlternative {
  std::string name;
  ScaleOptions options;
  ScalePrediction prediction;
};
std::vector<ScaleAlternative> Alternatives(const StepTimeline& timeline,
                                           const ir::Cluster& cluster,
                                           const ScaleOptions& options);

}  // namespace fusor::codegen
