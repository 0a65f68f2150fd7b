#pragma once

#include <vector>

#include "ir/builder.h"

namespace fusor::passes {

// Mean and biased variance per channel, [C] each.
struct ChannelStatistics {
  ir::Value* mean;
  ir::Value* variance;
};

// Returns the sums over `ranks` ranks of vectors [C] of one type. One
// all_gather serves all vectors, e.g. of the normalisations of one layer. Adds
// in rank order, so the results are bit-identical on all ranks.
std::vector<ir::Value*> SumOverRanks(ir::Builder& builder,
                                     const std::vector<ir::Value*>& vectors,
                                     int64_t ranks);

// The same for a scalar.
ir::Value* SumOverRanks(ir::Builder& builder, ir::Value* scalar, int64_t ranks);

// Returns the statistics over the batches of all ranks, which have equal size.
// One all_gather exchanges the statistics of each rank. Merges as in Chan,
// Golub and LeVeque, "Algorithms for Computing the Sample Variance", The
// American Statistician 37(3), 1983: the variance of a union is the mean of the
// parts' variances plus the variance of their means. The latter uses sums
// shifted by rank 0's mean.
std::vector<ChannelStatistics> MergeOverRanks(
    ir::Builder& builder, const std::vector<ChannelStatistics>& parts,
    int64_t ranks);

}  // namespace fusor::passes
