#pragma once

#include <string>
#include <vector>

#include "passes/passes.h"

namespace fusor::codegen {

// Returns an HTML page of pass decisions: counts per reason, and per model
// location the accepted and rejected rewrites with estimated times, largest
// saving first.
std::string DecisionsPage(const std::vector<passes::Decision>& decisions,
                          const std::string& title);

}  // namespace fusor::codegen
