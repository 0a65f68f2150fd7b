#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "codegen/plan/plan.h"
#include "ir/target/target.h"
#include "passes/collectives/bucket_partition.h"
#include "tools/inspect/report/graph_view.h"

namespace fusor::inspect {

// Costs of a plan per step: estimated and, with a profile, measured, compared
// with the limits of the target.

// The resource that limits a step, according to the target description.
enum class Bound : uint8_t { kArithmetic, kMemory, kLaunch, kNetwork };
// "arithmetic", "memory", "launch", "network"
std::string_view BoundName(Bound bound);

struct StepCost {
  int step = 0;          // index in the plan
  std::string op_class;  // "conv2d", "fusion, backward", ...
  std::string kind;      // NodeKind
  StepPhase phase = StepPhase::kForward;
  int64_t bytes = 0;
  int64_t flops = 0;
  // Estimated time: the larger of the memory time at the target's bandwidth and
  // the arithmetic time, plus the launch overhead. The arithmetic time is the
  // library's estimate for its chosen algorithm, otherwise flops at the
  // target's peak.
  double modelled_us = 0;
  double measured_us = -1;  // -1 without a profile
  // Time at the target's limits, without overhead and with the nominal flops.
  double limit_us = 0;
  Bound bound = Bound::kMemory;

  double us() const { return measured_us >= 0 ? measured_us : modelled_us; }
  // limit / time. Above 1 if Winograd needs fewer multiplications, or a cache
  // less memory traffic, than the limit assumes.
  double share() const { return us() > 0 ? limit_us / us() : 0; }
};

struct ClassCost {
  std::string op_class;
  int64_t steps = 0;
  int64_t bytes = 0;
  int64_t flops = 0;
  double modelled_us = 0;
  double measured_us = -1;
  double limit_us = 0;

  double us() const { return measured_us >= 0 ? measured_us : modelled_us; }
  double share() const { return us() > 0 ? limit_us / us() : 0; }
};

struct PlanReport {
  std::vector<StepCost> steps;     // in issue order
  std::vector<ClassCost> classes;  // longest first
  // op_class "total"; excludes collectives, which overlap with the other steps
  ClassCost total;
};

// Computes the costs of a plan. `graph`: the graph that the plan was built
// from. `measured_ms`: one time per step (Program::Profile), or empty.
// `network`: the cost of an all-reduce, from which collectives are estimated.
PlanReport ReportPlan(const codegen::Plan& plan, const ir::Graph& graph,
                      const ir::TargetQueries& target,
                      std::span<const double> measured_ms = {},
                      const passes::CollectiveCost& network = {{{0, 0}}});

// Returns the bytes of the collective's unsharded tensors.
int64_t CollectiveBytes(const codegen::LibraryCall& call);

// Returns the start time of each step in us: when its stream is idle and all
// events that it waits for have happened.
std::vector<double> StartTimes(const codegen::Plan& plan,
                               const PlanReport& report);

// Returns times and kernels by name of the step's node.
NodeRuns RunsOf(const codegen::Plan& plan, const PlanReport& report);

// The collectives of a training step, and the part of their time that is not
// overlapped with computation.

// One collective. Times are microseconds since the start of the step.
struct CollectiveSpan {
  int step = 0;  // index in the plan
  int64_t tensors = 0;
  int64_t bytes = 0;  // of unsharded tensors
  double start_us = 0;
  double end_us = 0;
  // Reduces a gradient bucket; otherwise gathers statistics or shards.
  bool sums = false;
  // Whether it gathers parameter shards for this step's forward pass.
  bool gathers_ahead = false;
};

struct CollectiveTimeline {
  std::vector<CollectiveSpan> collectives;  // in issue order
  double end_us = 0;                        // of the step
  // Step time minus computation: communication that is not overlapped.
  double not_overlapped_us = 0;

  int64_t buckets() const;  // gradient buckets
  int64_t bucket_bytes() const;
  // Sum of all collectives' durations.
  double communication_us() const;
};

// Schedules the plan with the times of `report`. These should be estimates: a
// profile measures only how long a collective takes to start.
CollectiveTimeline CollectiveTimelineOf(const codegen::Plan& plan,
                                        const PlanReport& report);

// [{op, name, tensors, dtype, bytes, start_ms, end_ms}]
nlohmann::json CollectivesJson(const codegen::Plan& plan,
                               const CollectiveTimeline& communication);

}  // namespace fusor::inspect
