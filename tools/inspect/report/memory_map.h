#pragma once

#include <string>

#include "codegen/plan/plan.h"

namespace fusor::codegen {

// Where everything lies, for people: the arenas; the busiest step and what is
// live there, largest first; every buffer with arena, offset, size, the steps
// that it lives through, the value that it holds and its model location.
std::string MemoryMap(const Plan& plan);

// The steps in order with what they run, the bytes that are live meanwhile, and
// what they move and compute.
std::string ScheduleText(const Plan& plan);

}  // namespace fusor::codegen
