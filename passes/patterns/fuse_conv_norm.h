#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/dtype.h"
#include "ir/graph.h"
#include "passes/library/conv_rewriter.h"
#include "passes/passes.h"

namespace fusor::passes {

// FuseConvNorm at `level`, whatever the options say: makes all that the target
// has, and returns it in the order in which it was made. Refuses nothing.
std::vector<ConvRewrite> SurveyConvNorm(ir::Graph& graph, PassContext& context,
                                        NormLowering level);

// The rewrites that begin gradients of normalisations in data gradients.
void TakeNormGradients(ConvRewriter& rewriter);

// Those that apply normalisations in what reads them: by all readers, or by one
// that stores what the others read.
void ApplyNormsInReaders(ConvRewriter& rewriter);
void ApplyNormsAtJoins(ConvRewriter& rewriter);

}  // namespace fusor::passes
