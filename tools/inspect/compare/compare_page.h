#pragma once

#include <string>
#include <vector>

#include "tools/inspect/compare/compare_metrics.h"
#include "tools/inspect/compare/comparison.h"

namespace fusor::runtime {

// Returns the comparison as one self-contained HTML page: key numbers, time and
// bytes per op class, kernels per model part, memory over the schedule,
// differences. `subject`: what was compared, on which device.
std::string ComparisonPage(const Comparison& comparison,
                           const std::vector<VariantMetrics>& facts,
                           const std::string& subject);

}  // namespace fusor::runtime
