#pragma once

#include "codegen/plan/plan.h"

namespace fusor::codegen {

// Assigns the collectives of a plan to stream 1 and adds events. A collective
// waits for the last earlier step that uses one of its buffers. The first later
// step that uses one of its buffers waits for it. Needs no offsets.
void AssignStreams(Plan& plan);

}  // namespace fusor::codegen
