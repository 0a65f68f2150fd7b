#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tools/inspect/compare/compare_metrics.h"
#include "tools/inspect/compare/comparison.h"

namespace fusor::inspect {

// Returns an aligned table for a terminal, at most 100 columns wide unless
// names are too long. `top`: number of worst differences, and of rejected
// fusions, listed per variant.
std::string ComparisonText(const Comparison& comparison,
                           const std::vector<VariantMetrics>& facts,
                           size_t top);

// Returns stable keys; see README "JSON".
nlohmann::json ComparisonJson(const Comparison& comparison,
                              const std::vector<VariantMetrics>& facts);

// Returns the comparison as one self-contained HTML page: key numbers, time and
// bytes per op class, kernels per model part, memory over the schedule,
// differences. `subject`: what was compared, on which device.
std::string ComparisonPage(const Comparison& comparison,
                           const std::vector<VariantMetrics>& facts,
                           const std::string& subject);

}  // namespace fusor::inspect
