#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "codegen/plan/plan.h"
#include "tools/inspect/report/plan_report.h"

namespace fusor::codegen {

// One step of the plan in the Trace Event Format, which Perfetto and
// chrome://tracing open: a track a stream, an event a step, as long as it was
// measured or, without a profile, is modelled to take. Events of a stream do
// not overlap; a step that waits for an event starts after it.
nlohmann::json ChromeTrace(const Plan& plan, const PlanReport& report);

}  // namespace fusor::codegen
