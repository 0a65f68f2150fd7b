#pragma once

#include "codegen/lower/lowered_kernel.h"
#include "ir/graph.h"
#include "ir/target/target.h"

namespace fusor::codegen {

// REQUIRES: `fusion` is a fusion node that passes::Fuse or FuseUpdates made.
// The kernel, its reduction trees included, depends only on the body, its
// types, and the target.
LoweredKernel LowerFusion(const ir::Node& fusion, const ir::Target& target);

}  // namespace fusor::codegen
