#pragma once

#include <vector>

#include "ir/builder.h"

namespace fusor::passes {

// Mean and biased variance of channels, [C] each.
struct ChannelStatistics {
  ir::Value* mean;
  ir::Value* variance;
};

// Vectors [C] of one type, of several normalisations of one layer, summed over
// `ranks` ranks that all have as many: one all_gather for all of them, added up
// in the order of ranks, so that all ranks get the same bits.
std::vector<ir::Value*> SumOverRanks(ir::Builder& builder,
                                     const std::vector<ir::Value*>& vectors,
                                     int64_t ranks);

// The same of a scalar.
ir::Value* SumOverRanks(ir::Builder& builder, ir::Value* scalar, int64_t ranks);

// The statistics of the batches of all ranks together, of equal size, by one
// all_gather of those of each. Merged as in Chan, Golub and LeVeque,
// "Algorithms for Computing the Sample Variance", The American Statistician
// 37(3), 1983: the variance of a union is the mean of the parts' variances and
// the variance of their means; the latter by sums shifted by rank 0's mean.
std::vector<ChannelStatistics> MergeOverRanks(
    ir::Builder& builder, const std::vector<ChannelStatistics>& parts,
    int64_t ranks);

}  // namespace fusor::passes
