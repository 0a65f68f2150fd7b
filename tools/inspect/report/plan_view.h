#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "codegen/plan/plan.h"
#include "ir/graph.h"
#include "ir/target/target.h"
#include "tools/inspect/report/plan_report.h"

namespace fusor::inspect {

// The output of `fusor plan`.

// Returns tables for a terminal: costs per op class, the collectives, then the
// `top` longest steps.
std::string PlanReportText(const codegen::Plan& plan, const PlanReport& report,
                           const ir::Target& target, size_t top);

// Returns stable keys: target {name, threads, peak_gflops_f32,
// memory_gb_per_s}, total, op_classes, steps, collectives [{op, name, tensors,
// dtype, bytes, start_ms, end_ms}]; planned_peak_bytes,
// planned_lower_bound_bytes.
nlohmann::json PlanReportJson(const codegen::Plan& plan,
                              const PlanReport& report,
                              const ir::Target& target);

// Returns one self-contained HTML page. `graph`: the plan's.
std::string PlanPage(const codegen::Plan& plan, const ir::Graph& graph,
                     const PlanReport& report, const ir::Target& target,
                     const std::string& subject);

// Returns one step of the plan in the Trace Event Format, for Perfetto and
// chrome://tracing: a track per stream and an event per step. Event lengths are
// measured times or, without a profile, estimates. Events of a stream do not
// overlap. A step that waits for an event starts after it.
nlohmann::json ChromeTrace(const codegen::Plan& plan, const PlanReport& report);

// Returns a roofline plot as SVG (Williams, Waterman, Patterson: "Roofline: an
// insightful visual performance model", 2009). The x axis is arithmetic
// intensity, the y axis speed, both logarithmic; the roof shows the target's
// limits. One dot per step, with an area proportional to its time. Omits steps
// without arithmetic, and copies. Without a profile, uses estimated times.
std::string RooflineSvg(const PlanReport& report, const ir::Target& target,
                        const std::string& title);

}  // namespace fusor::inspect
