#pragma once

#include "codegen/lower/lowered_kernel.h"
#include "ir/target/target.h"

namespace fusor::codegen {

// Lowers the body of a loop fusion. `eager` rounds the result of every op.
// REQUIRES: passes::AnalyzeDomain accepts the body.
LoweredKernel LowerLoops(const ir::Graph& body, const ir::Target& target,
                         bool eager);

}  // namespace fusor::codegen
