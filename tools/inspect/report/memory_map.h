#pragma once

#include <string>

#include "codegen/plan/plan.h"

namespace fusor::codegen {

// Returns the memory layout as text: the arenas; the step with the most live
// bytes and its live buffers, largest first; every buffer with arena, offset,
// size, live range, value name and model location.
std::string MemoryMap(const Plan& plan);

// Returns the steps in order: what they run, live bytes, bytes moved, flops.
std::string ScheduleText(const Plan& plan);

}  // namespace fusor::codegen
