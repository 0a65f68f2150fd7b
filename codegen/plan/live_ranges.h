#pragma once

#include <vector>

#include "codegen/plan/plan.h"

namespace fusor::codegen {

// Live range of a buffer: the first and last step that use it, or -1.
struct LiveRange {
  int first = -1;
  int last = -1;
};

// Returns the live range of each buffer of the plan. A step that uses a span
// uses all its members.
std::vector<LiveRange> LiveRanges(const Plan& plan);

}  // namespace fusor::codegen
