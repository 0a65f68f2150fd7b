#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "codegen/plan/plan.h"
#include "tools/inspect/report/plan_report.h"

namespace fusor::codegen {

// Returns one step of the plan in the Trace Event Format, for Perfetto and
// chrome://tracing: a track per stream and an event per step. Event lengths are
// measured times or, without a profile, estimates. Events of a stream do not
// overlap. A step that waits for an event starts after it.
nlohmann::json ChromeTrace(const Plan& plan, const PlanReport& report);

}  // namespace fusor::codegen
