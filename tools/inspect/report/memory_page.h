#pragma once

#include <string>

#include "codegen/plan/plan.h"

namespace fusor::codegen {

// Returns an HTML page about a plan's memory: live bytes over time, offset and
// live range of each buffer, and the buffers live at the peak, largest first.
std::string MemoryPage(const Plan& plan, const std::string& title);

}  // namespace fusor::codegen
