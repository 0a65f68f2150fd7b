#pragma once

#include "codegen/lower/lowered_kernel.h"
#include "ir/target/target.h"

namespace fusor::codegen {

// The pooling that a body is about: the first of its nodes with a window. Null
// where it has none.
const ir::Node* PoolingOf(const ir::Graph& body);

// Kernels of max_pool, max_pool_gather, avg_pool and the gradients of pooling,
// as the interpreter defines them, sums in f32 (f64 for f64). A result element
// is computed by one thread from all that it depends on, gradients too, so that
// nothing is added up in memory. One phase does the windows that lie inside the
// image, one more each way in which others reach beyond it; their tasks are
// alike.
//
// Beside the pooling a body may have (see passes/fusion/fuse_pool.cc)
//   - max_pool_gathers of the same windows, by the index that it stores;
//   - elementwise nodes, constants of one value, and scalars and vectors along
//     dimension 1 that are broadcast: what leads to the pooling's and the
//     gathers' operands, computed for each element of a window, and what is
//     computed of the pooling's first result, element by element.
// What a window reads is rounded to its dtype first: the pooling sees what it
// would have read from memory. Everything else is rounded at its end, or, with
// `eager`, at every node.
//
// Any layout without tiles; channels-last is what the threads lie along.
LoweredKernel LowerPool(const ir::Graph& body, const ir::Target& target,
                        bool eager);

}  // namespace fusor::codegen
