#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tools/inspect/compare/compare_metrics.h"
#include "tools/inspect/compare/comparison.h"

namespace fusor::runtime {

// Returns an aligned table for a terminal, at most 100 columns wide unless
// names are too long. `top`: number of worst differences, and of rejected
// fusions, listed per variant.
std::string ComparisonText(const Comparison& comparison,
                           const std::vector<VariantMetrics>& facts,
                           size_t top);

// Returns stable keys; see README "JSON".
nlohmann::json ComparisonJson(const Comparison& comparison,
                              const std::vector<VariantMetrics>& facts);

}  // namespace fusor::runtime
