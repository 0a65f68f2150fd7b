#pragma once

#include "codegen/lower/lowered_kernel.h"
#include "ir/graph.h"
#include "ir/target/target.h"

namespace fusor::codegen {

// Lowers a fusion node. The kernel, including its reduction trees, depends only
// on the body, its types and attributes, and the target. REQUIRES: a pass of
// passes/fusion created the node.
LoweredKernel LowerFusion(const ir::Node& fusion, const ir::Target& target);

}  // namespace fusor::codegen
