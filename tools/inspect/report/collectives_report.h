#pragma once

// The collectives of a training step, and the part of their time that is not
// overlapped with computation.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "codegen/plan/plan.h"
#include "tools/inspect/report/plan_report.h"

namespace fusor::codegen {

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

struct Exchange {
  std::vector<CollectiveSpan> collectives;  // in issue order
  double end_us = 0;                        // of the step
  // Step time minus computation: communication that is not overlapped.
  double exposed_us = 0;

  int64_t buckets() const;  // gradient buckets
  int64_t bucket_bytes() const;
  // Sum of all collectives' durations.
  double communication_us() const;
};

// Schedules the plan with the times of `report`. These should be estimates: a
// profile measures only how long a collective takes to start.
Exchange ExchangeOf(const Plan& plan, const PlanReport& report);

// [{op, name, tensors, dtype, bytes, start_ms, end_ms}]
nlohmann::json CollectivesJson(const Plan& plan, const Exchange& exchange);

}  // namespace fusor::codegen
