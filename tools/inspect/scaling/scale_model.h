#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "codegen/plan/plan.h"
#include "ir/target/cluster.h"
#include "passes/collectives/bucket_partition.h"
#include "tools/inspect/report/plan_report.h"

namespace fusor::inspect {

// The times of one rank's training step that determine its gradient
// all-reduces. Seconds from the start of the step.
struct StepTimeline {
  struct Gradient {
    std::string location;  // model location
    int64_t elements = 0;
    double ready = 0;
  };
  double forward = 0;               // end of the forward pass
  double backward = 0;              // end of the backward pass
  double update = 0;                // duration of the optimizer update
  std::vector<Gradient> gradients;  // in the order in which they become ready

  double step() const { return backward + update; }
  int64_t elements() const;  // of all gradients
};

// Returns the timeline of a single-rank plan with an update, with the measured
// or estimated times of `report`. A gradient is a value of the backward pass
// that the update reads. It is ready at the end of the step that computes it. A
// gradient that two parameters share, e.g. the shifts of two added
// normalisations, counts once unless the update reads a copy of it. Throws
// kGraph unless the gradients have at most as many elements as the parameters,
// and more than 90 % of them.
StepTimeline TimelineOf(const codegen::Plan& plan, const ir::Graph& graph,
                        const PlanReport& report);

// Returns the timeline scaled to a step of `step_seconds`.
StepTimeline Stretched(StepTimeline timeline, double step_seconds);

// Estimates the step time on N nodes with G devices each, from the step's
// timeline on one device, the gradient all-reduces overlapped with it, and the
// input rate. One collective runs at a time, in ready order, at the cluster's
// speed. Collectives do not slow down the computation.

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
  // Measured images/s of one node; 0: none. If one node is slower than
  // estimated, the step on several nodes is assumed to be longer by the same
  // share. The cluster's jitter is then ignored.
  double node_rate = 0;
};

enum class ScaleLimit : uint8_t { kCompute, kCommunication, kInput };
std::string_view LimitName(ScaleLimit limit);

struct ScalePrediction {
  std::vector<passes::GradientBucket> buckets;
  // For a sharded optimizer: when all of a bucket's parameters are gathered,
  // from the start of the next forward pass. Gathers have separate buckets.
  std::vector<double> gathered;
  double not_overlapped = 0;  // seconds of communication that is not overlapped
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

// A prediction with its inputs. `alternatives` is the result of Alternatives();
// the first one is the requested configuration.
struct ScaleReport {
  std::string subject;  // "resnet50-v1.5, batch 128"
  std::string source;   // source of the timeline's times
  std::string target;   // device of these times; empty: that of the cluster
  ir::Cluster cluster;
  StepTimeline timeline;
  std::vector<ScaleAlternative> alternatives;
};

// Returns a warning if the times are of another kind of device than the
// cluster's; empty if not.
std::string ScaleWarning(const ScaleReport& report);

// Returns text tables: the prediction, each bucket, the alternatives.
std::string ScaleText(const ScaleReport& report);

// Returns the same numbers; times in milliseconds.
nlohmann::json ScaleJson(const ScaleReport& report);

// Returns the step as bars over time, computation above communication.
// Highlights communication that is not overlapped.
std::string ScaleSvg(const ScaleReport& report);

}  // namespace fusor::inspect
