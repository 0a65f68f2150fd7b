#pragma once

#include <string>
#include <vector>

#include "tools/inspect/compare/compare_metrics.h"
#include "tools/inspect/compare/comparison.h"

namespace fusor::runtime {

// The comparison as one self-contained HTML page: key numbers, time and bytes
// by class of op, the kernels of each part of the model, memory over the
// schedule, differences. `subject` says what was compared, on what.
std::string ComparisonPage(const Comparison& comparison,
                           const std::vector<VariantMetrics>& facts,
                           const std::string& subject);

}  // namespace fusor::runtime
