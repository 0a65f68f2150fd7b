#pragma once

#include "codegen/lower_fusion.h"

namespace fusor::codegen {

// Kernels of max_pool, avg_pool and their gradients, as the interpreter defines
// them, sums in f32 (f64 for f64). A result element is computed by one thread
// from all that it depends on, gradients too, so that nothing is added up in
// memory. One phase does the windows that lie inside the image, one more each
// way in which others reach beyond it; their tasks are alike.
//
// Any layout without tiles; channels-last is what the threads lie along.
// REQUIRES: one of these is the only node of the body, whose results are some
// of the node's.
LoweredKernel LowerPool(const ir::Graph& body, const ir::Target& target);

}  // namespace fusor::codegen
