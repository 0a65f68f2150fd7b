#pragma once

#include <string>

#include "ir/target/target.h"
#include "tools/inspect/report/plan_report.h"

namespace fusor::codegen {

// Returns a roofline plot as SVG (Williams, Waterman, Patterson: "Roofline: an
// insightful visual performance model", 2009). The x axis is arithmetic
// intensity, the y axis speed, both logarithmic; the roof shows the target's
// limits. One dot per step, with an area proportional to its time. Omits steps
// without arithmetic, and copies. Without a profile, uses estimated times.
std::string RooflineSvg(const PlanReport& report, const ir::Target& target,
                        const std::string& title);

}  // namespace fusor::codegen
