#pragma once

// What a plan costs, step by step: the model's view and, where there is a
// profile, the clock's, against what the target can do.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "codegen/plan/plan.h"
#include "ir/target/target.h"
#include "passes/collectives/bucket_partition.h"
#include "tools/inspect/report/graph_view.h"
#include "tools/inspect/report/step_phase.h"

namespace fusor::codegen {

// What keeps a step from being faster, by the target's description.
enum class Bound : uint8_t { kArithmetic, kMemory, kLaunch, kNetwork };
// "arithmetic", "memory", "launch", "network"
std::string_view BoundName(Bound bound);

struct StepCost {
  int step = 0;          // in the plan
  std::string op_class;  // "conv2d", "fusion, backward", ...
  std::string kind;      // NodeKind
  StepPhase phase = StepPhase::kForward;
  int64_t bytes = 0;
  int64_t flops = 0;
  // Of the library's candidate where it has one; else the greater of moving
  // the bytes at the target's bandwidth and of computing at its peak. With the
  // launch.
  double modelled_us = 0;
  double measured_us = -1;  // -1 without a profile
  // Time at the target's limits: neither overhead nor a library's cleverness.
  double limit_us = 0;
  Bound bound = Bound::kMemory;

  double us() const { return measured_us >= 0 ? measured_us : modelled_us; }
  // limit / time. Above 1 where Winograd does with fewer multiplications, or a
  // cache with less memory traffic, than the limit counts.
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
  // op_class "total"; without collectives, which run beside the others.
  ClassCost total;
};

// `graph` is the one that the plan was made of; `measured_ms` holds one number
// a step (Session::ProfileStep) or none. Collectives take what `network` says
// of sums.
PlanReport ReportPlan(const Plan& plan, const ir::Graph& graph,
                      const ir::TargetQueries& target,
                      std::span<const double> measured_ms = {},
                      const passes::CollectiveCost& network = {{{0, 0}}});

// Of the tensors that a collective is about, whole ones.
int64_t CollectiveBytes(const LibraryCall& call);

// When each step starts, in us: once its stream is free and what it waits for
// has ended.
std::vector<double> StartTimes(const Plan& plan, const PlanReport& report);

// By the name of the step's node.
NodeTimes TimesOf(const Plan& plan, const PlanReport& report);

}  // namespace fusor::codegen
