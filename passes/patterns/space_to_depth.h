#pragma once

#include <vector>

#include "ir/graph.h"
#include "passes/passes.h"
#include "passes/patterns/fuse_conv_norm.h"

namespace fusor::passes {

// Computes a convolution of stride 2 on images that the step normalises as one
// of stride 1 on 2x2 blocks of pixels (op space_to_depth): where choices say
// "space_to_depth" of its problem, and where it is to sum up its result's
// statistics (NormLowering::kStatistics), which the library then has and
// otherwise lacks. Choices that name an engine decline it. On GPUs alone.
// Counts space_to_depth and, where choices said so, chosen_forms.
bool SpaceToDepth(ir::Graph& graph, PassContext& context);

// Makes it of all convolutions that it can be made of, whatever choices and the
// rule say, and returns what it made. Of the bytes those count that the new
// operands take; what the statistics save is for SurveyConvNorm to say. Counts
// and records nothing.
std::vector<ConvRewrite> SurveySpaceToDepth(ir::Graph& graph,
                                            const PassContext& context);

}  // namespace fusor::passes
