#pragma once

#include <string>

#include "ir/target/target.h"
#include "tools/inspect/report/plan_report.h"

namespace fusor::codegen {

// The roofline picture as SVG (Williams, Waterman, Patterson: "Roofline: an
// insightful visual performance model", 2009): arithmetic intensity across,
// speed upwards, both logarithmic, the target's limits as the roof, a dot a
// step, its area in proportion to its time. Steps without arithmetic, and
// copies, are left out. Without a profile the dots lie where the model has
// them.
std::string RooflineSvg(const PlanReport& report, const ir::Target& target,
                        const std::string& title);

}  // namespace fusor::codegen
