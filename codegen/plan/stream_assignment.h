#pragma once

#include "codegen/plan/plan.h"

namespace fusor::codegen {

// Puts the collectives of a plan on stream 1, where each waits for the last
// step that uses an operand of it; the first step that touches what it
// changes waits for it. Needs no offsets.
void AssignStreams(Plan& plan);

}  // namespace fusor::codegen
