#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tools/inspect/compare/compare_metrics.h"
#include "tools/inspect/compare/comparison.h"

namespace fusor::runtime {

// A table for a terminal: aligned, at most 100 columns where names allow it.
// `top`: how many of the worst differences, and of the refused fusions, are
// listed for each variant.
std::string ComparisonText(const Comparison& comparison,
                           const std::vector<VariantMetrics>& facts,
                           size_t top);

// Stable keys, see README "JSON".
nlohmann::json ComparisonJson(const Comparison& comparison,
                              const std::vector<VariantMetrics>& facts);

}  // namespace fusor::runtime
