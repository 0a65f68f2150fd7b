#pragma once

// The output of `fusor plan`.

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "codegen/plan/plan.h"
#include "ir/graph.h"
#include "ir/target/target.h"
#include "tools/inspect/report/plan_report.h"

namespace fusor::codegen {

// Returns tables for a terminal: costs per op class, the collectives, then the
// `top` longest steps.
std::string PlanReportText(const Plan& plan, const PlanReport& report,
                           const ir::Target& target, size_t top);

// Returns stable keys: target {name, threads, peak_gflops_f32,
// memory_gb_per_s}, total, op_classes, steps, collectives [{op, name, tensors,
// dtype, bytes, start_ms, end_ms}]; planned_peak_bytes,
// planned_lower_bound_bytes.
nlohmann::json PlanReportJson(const Plan& plan, const PlanReport& report,
                              const ir::Target& target);

// Returns one self-contained HTML page. `graph`: the plan's.
std::string PlanPage(const Plan& plan, const ir::Graph& graph,
                     const PlanReport& report, const ir::Target& target,
                     const std::string& subject);

}  // namespace fusor::codegen
