#pragma once

// How fast a step is on N nodes of G devices: its own timeline, the sums of its
// gradients under it, and what feeds it. One collective runs at a time, in
// ready order, at the cluster's speed, and does not slow the computation down.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/target/cluster.h"
#include "passes/collectives/bucket_partition.h"
#include "tools/inspect/scaling/step_timeline.h"

namespace fusor::codegen {

// A sum over ranks, by NCCL's own model (src/graph/tuning.cc): over a ring, the
// bytes pass each link 2 (n-1) / n times, with a latency for each of 2 (n-1)
// hops; over a tree twice, where several nodes have one.
passes::CollectiveCost AllReduceCost(const ir::Cluster& cluster, int64_t nodes,
                                     int64_t gpus);

struct ScaleOptions {
  int64_t nodes = 1;
  int64_t gpus = 1;             // ranks of a node
  int64_t batch = 1;            // of a rank
  passes::BucketPolicy policy;  // element_bytes: the wire's
  // Reduce-scatter, update of an own share, all-gather under the next forward
  // pass (Rajbhandari et al.: "ZeRO", 2020, stage 1), instead of all-reduce.
  bool sharded = false;
  double input_rate = 0;  // images/s that a node can be fed; 0: any
  // Images/s of one node as measured. What it is short of the model, for
  // whatever reason, is taken to cost several nodes the same share; the
  // cluster's jitter is then left out.
  double node_rate = 0;
};

enum class ScaleLimit : uint8_t { kCompute, kCommunication, kInput };
std::string_view LimitName(ScaleLimit limit);

struct ScalePrediction {
  std::vector<passes::GradientBucket> buckets;
  // Of a sharded optimizer: when all of a bucket's parameters are gathered,
  // from the start of the next forward pass. They have buckets of their own.
  std::vector<double> gathered;
  double exposed = 0;  // seconds of communication that nothing hides
  double waiting = 0;  // for the slowest rank, or what the node rate tells
  double starved = 0;  // for input
  double step = 0;     // seconds, with all of that
  double images_per_second = 0;  // of all ranks
  double speedup = 0;            // against one rank's step
  // What costs most of the difference to a perfect speedup: communication
  // or input; compute, where both are below 1 % of the step.
  ScaleLimit limit = ScaleLimit::kCompute;
};

ScalePrediction PredictScale(const StepTimeline& timeline,
                             const ir::Cluster& cluster,
                             const ScaleOptions& options);

// Other ways to do the same: each bucket policy, the wire in fp32 and in 16
// bit, the sharded optimizer; what was chosen comes first.
struct ScaleAlternative {
  std::string name;
  ScaleOptions options;
  ScalePrediction prediction;
};
std::vector<ScaleAlternative> Alternatives(const StepTimeline& timeline,
                                           const ir::Cluster& cluster,
                                           const ScaleOptions& options);

}  // namespace fusor::codegen
