#pragma once

#include <string>
#include <vector>

#include "passes/passes.h"

namespace fusor::codegen {

// A page of what passes decided: how often for which reason, and for each place
// of the model what was made and refused there, with modelled times, what saves
// most first.
std::string DecisionsPage(const std::vector<passes::Decision>& decisions,
                          const std::string& title);

}  // namespace fusor::codegen
