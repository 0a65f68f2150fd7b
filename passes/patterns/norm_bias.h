#pragma once

#include "ir/graph.h"

namespace fusor::passes {

// Returns true if the bias of `conv` only shifts the mean of `norm`: the
// convolution's result has no readers but that normalisation and its gradient.
// Libraries may lack statistics for convolutions with a bias.
bool BiasMovesMean(const ir::Graph& graph, const ir::Node& conv,
                   const ir::Node& norm);

// Call after the bias was removed from the first operand of `norm` and from its
// gradient's. Adds `bias` to the mean for its other readers, e.g. the running
// statistics.
void AddBiasToMean(ir::Graph& graph, ir::Node* norm, ir::Value* bias);

}  // namespace fusor::passes
