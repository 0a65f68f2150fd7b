#pragma once

#include "ir/graph.h"
#include "passes/passes.h"

namespace fusor::passes {

// Computes a convolution of stride 2 on images that the step normalises as one
// of stride 1 on 2x2 blocks of pixels (op space_to_depth): where choices say
// "space_to_depth" of its problem, and where it is to sum up its result's
// statistics (NormLowering::kStatistics), which the library then has and
// otherwise lacks. Choices that name an engine decline it. On GPUs alone.
// Counts space_to_depth.
bool SpaceToDepth(ir::Graph& graph, PassContext& context);

}  // namespace fusor::passes
