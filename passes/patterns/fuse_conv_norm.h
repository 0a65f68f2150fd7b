#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/dtype.h"
#include "ir/graph.h"
#include "passes/library/conv_rewriter.h"
#include "passes/passes.h"

namespace fusor::passes {

// Runs FuseConvNorm at `level` and ignores PassOptions::norm_lowering. Makes
// all rewrites that the target supports and returns them in the order in which
// they were made. Does not throw if the target supports none.
std::vector<ConvRewrite> SurveyConvNorm(ir::Graph& graph, PassContext& context,
                                        NormLowering level);

// Fuses gradients of normalisations into the data gradients that precede them.
void TakeNormGradients(ConvRewriter& rewriter);

// Fuses a normalisation into all convolutions that read it. The normalised
// values are not stored.
void ApplyNormsInReaders(ConvRewriter& rewriter);
// Fuses a normalisation and its residual add into one convolution that reads
// the sum. That convolution also stores the sum for the other readers.
void ApplyNormsAtJoins(ConvRewriter& rewriter);

}  // namespace fusor::passes
