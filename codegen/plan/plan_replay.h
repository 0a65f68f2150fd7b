#pragma once

#include "codegen/plan/plan.h"

namespace fusor::codegen {

// Checks the part of VerifyPlan that tracks values in memory. Throws kInternal.
// REQUIRES: all indices and sizes in the plan are valid.
void ReplayPlan(const Plan& plan);

}  // namespace fusor::codegen
