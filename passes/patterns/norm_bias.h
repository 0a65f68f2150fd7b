#pragma once

#include "ir/graph.h"

namespace fusor::passes {

// Whether the bias of the convolution, which a library may not have beside
// statistics, only moves the mean of `norm`: nothing reads its result but that
// normalisation and its gradient.
bool BiasMovesMean(const ir::Graph& graph, const ir::Node& conv,
                   const ir::Node& norm);

// After the bias has gone from what `norm`, which reads it first, and its
// gradient read: the mean that others read, for the running statistics, is that
// of the sum with `bias`.
void AddBiasToMean(ir::Graph& graph, ir::Node* norm, ir::Value* bias);

}  // namespace fusor::passes
