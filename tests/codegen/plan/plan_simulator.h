#pragma once

#include <cstdint>
#include <vector>

#include "codegen/plan/plan.h"

namespace fusor::codegen {

// What a plan does, found by running it on symbols instead of numbers: every
// byte holds a hash of how it was made. Two plans with equal results mean the
// same. Knows nothing of VerifyPlan.
//
// Hashes of all outputs, of the state and inputs as the session finds them
// after the step; empty when a step would leave its memory or cannot be run.
// Steps run in `order`.
std::vector<uint64_t> Simulate(const Plan& plan, const std::vector<int>& order);

// An order in which the device may run the steps: each stream in issue order,
// each step after what it waits for; otherwise by `seed`.
std::vector<int> AnyOrder(const Plan& plan, uint64_t seed);

}  // namespace fusor::codegen
