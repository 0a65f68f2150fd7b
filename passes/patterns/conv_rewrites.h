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

// Rewrites a convolution on images of few channels that the step normalises: of
// stride 2 as one of stride 1 on 2x2 pixel blocks ("space_to_depth"), any other
// on images with channels of zeros ("pad_channels"). Both are the op
// space_to_depth. Does so if choices name the form for its problem. Without a
// choice, does so if the library can sum up the result's statistics
// (NormLowering::kStatistics) only in that form, or if image conversion and
// convolutions are estimated faster. A choice that names an engine rejects the
// rewrite. GPUs only. Counts space_to_depth, pad_channels and, for rewrites by
// choices, chosen_forms.
bool SpaceToDepth(ir::Graph& graph, PassContext& context);

// Rewrites all eligible convolutions, ignoring choices and estimates, and
// returns the rewrites. Their saved_bytes are those added by the new operands,
// negated; SurveyConvNorm accounts for the statistics. Counts and records
// nothing.
std::vector<ConvRewrite> SurveySpaceToDepth(ir::Graph& graph,
                                            const PassContext& context);

}  // namespace fusor::passes
