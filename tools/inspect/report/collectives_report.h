#pragma once

// What ranks exchange in a step, and how much of that nothing hides.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "codegen/plan/plan.h"
#include "tools/inspect/report/plan_report.h"

namespace fusor::codegen {

// A collective of the plan. Microseconds since the step's start.
struct CollectiveSpan {
  int step = 0;  // in the plan
  int64_t tensors = 0;
  int64_t bytes = 0;  // of whole tensors
  double start_us = 0;
  double end_us = 0;
  // A bucket of gradients; else statistics or parts of parameters are gathered.
  bool sums = false;
  // Parts of parameters are gathered for this step's forward pass.
  bool gathers_ahead = false;
};

struct Exchange {
  std::vector<CollectiveSpan> collectives;  // in issue order
  double end_us = 0;                        // of the step
  // Of the step, when nothing is computed.
  double exposed_us = 0;

  int64_t buckets() const;  // collectives that sum gradients
  int64_t bucket_bytes() const;
  // Of collectives, as long as they take alone.
  double communication_us() const;
};

// By the times of `report`, which should be modelled ones: in a profile a
// collective takes as long as it takes to start it.
Exchange ExchangeOf(const Plan& plan, const PlanReport& report);

// [{op, name, tensors, dtype, bytes, start_ms, end_ms}]
nlohmann::json CollectivesJson(const Plan& plan, const Exchange& exchange);

}  // namespace fusor::codegen
