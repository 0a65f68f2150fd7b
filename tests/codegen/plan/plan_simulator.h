#pragma once

#include <cstdint>
#include <vector>

#include "codegen/plan/plan.h"

namespace fusor::codegen {

// Runs a plan on symbols instead of numbers: every byte holds a hash of how it
// was computed. Plans with equal results are equivalent. Shares no code with
// VerifyPlan.
//
// Returns the hashes of all outputs, of the state and of the inputs after the
// step. Returns nothing if a step would leave its memory or cannot run. Runs
// the steps in `order`.
std::vector<uint64_t> Simulate(const Plan& plan, const std::vector<int>& order);

// Returns a valid order of the steps on a device: each stream runs in issue
// order, and each step runs after those that it waits for. The seed decides the
// rest.
std::vector<int> AnyOrder(const Plan& plan, uint64_t seed);

}  // namespace fusor::codegen
