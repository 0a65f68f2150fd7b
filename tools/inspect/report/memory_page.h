#pragma once

#include <string>

#include "codegen/plan/plan.h"

namespace fusor::codegen {

// A page of a plan's memory: how much is live when, where each buffer lies for
// how long, and what is live at the peak, largest first.
std::string MemoryPage(const Plan& plan, const std::string& title);

}  // namespace fusor::codegen
