#pragma once

#include <vector>

#include "ir/graph.h"
#include "passes/passes.h"
#include "passes/patterns/fuse_conv_norm.h"

namespace fusor::passes {

// Rewrites a stride-2 convolution on images that the step normalises as a
// stride-1 convolution on 2x2 pixel blocks (op space_to_depth). Does so if
// choices name "space_to_depth" for its problem. Without a choice, does so if
// the library can sum up the result's statistics (NormLowering::kStatistics)
// only in that form. A choice that names an engine rejects the rewrite. GPUs
// only. Counts space_to_depth and, for rewrites by choices, chosen_forms.
bool SpaceToDepth(ir::Graph& graph, PassContext& context);

// Rewrites all eligible convolutions, ignoring choices and the rule, and
// returns the rewrites. Their saved_bytes are those added by the new operands,
// negated; SurveyConvNorm accounts for the statistics. Counts and records
// nothing.
std::vector<ConvRewrite> SurveySpaceToDepth(ir::Graph& graph,
                                            const PassContext& context);

}  // namespace fusor::passes
