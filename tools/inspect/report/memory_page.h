#pragma once

#include <string>

#include "codegen/plan/plan.h"

namespace fusor::codegen {

// Returns an HTML page of a plan's memory: live bytes over time, each buffer's
// offset and live range, and the live buffers at the peak, largest first.
std::string MemoryPage(const Plan& plan, const std::string& title);

}  // namespace fusor::codegen
