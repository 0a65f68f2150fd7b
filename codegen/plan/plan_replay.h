#pragma once

#include "codegen/plan/plan.h"

namespace fusor::codegen {

// The part of VerifyPlan that follows values through memory. REQUIRES: all
// indices and sizes in the plan were found right.
void ReplayPlan(const Plan& plan);

}  // namespace fusor::codegen
