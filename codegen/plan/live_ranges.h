#pragma once

#include <vector>

#include "codegen/plan/plan.h"

namespace fusor::codegen {

// First and last step that touches a buffer, -1 when none does.
struct LiveRange {
  int first = -1;
  int last = -1;
};

// Of each buffer of the plan; members of spans through their spans.
std::vector<LiveRange> LiveRanges(const Plan& plan);

}  // namespace fusor::codegen
