#pragma once

#include "codegen/lower/lowered_kernel.h"
#include "ir/target/target.h"

namespace fusor::codegen {

// Lowers `concat`, `pad` and `copy`, which store each operand into a part of
// the result (`copy`: all of it, in another layout). One phase per operand; for
// `pad`, a phase before it fills the result. Results of `concat` and `pad` are
// row-major. REQUIRES: the body is a single node of one of these ops.
LoweredKernel LowerDataMovement(const ir::Graph& body,
                                const ir::Target& target);

}  // namespace fusor::codegen
