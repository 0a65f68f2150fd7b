#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/dtype.h"
#include "ir/graph.h"
#include "passes/library/conv_rewriter.h"
#include "passes/passes.h"

namespace fusor::passes {

// Runs FuseConvNorm at `level`, whatever the options say. Makes all rewrites
// that the target supports and returns them in the order in which they were
// made. Does not throw if the target supports none.
std::vector<ConvRewrite> SurveyConvNorm(ir::Graph& graph, PassContext& context,
                                        NormLowering level);

// Fuses gradients of normalisations into the data gradients that precede them.
void TakeNormGradients(ConvRewriter& rewriter);

// Fuse normalisations into the convolutions that read them: into all readers,
// or, at residual adds, into one that stores the result for the other readers.
void ApplyNormsInReaders(ConvRewriter& rewriter);
void ApplyNormsAtJoins(ConvRewriter& rewriter);

}  // namespace fusor::passes
