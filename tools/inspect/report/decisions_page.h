#pragma once

#include <string>
#include <vector>

#include "passes/passes.h"

namespace fusor::codegen {

// Returns an HTML page of the passes' decisions: counts per reason, and
// accepted and rejected rewrites per model location with their estimated
// savings, largest first.
std::string DecisionsPage(const std::vector<passes::Decision>& decisions,
                          const std::string& title);

}  // namespace fusor::codegen
