#pragma once

#include "codegen/lower/lowered_kernel.h"
#include "ir/target/target.h"

namespace fusor::codegen {

// Returns the pooling of a body, its first node with a window; null if none.
const ir::Node* PoolingOf(const ir::Graph& body);

// Lowers max_pool, max_pool_gather, avg_pool and the gradients of pooling, as
// the interpreter defines them. Sums in f32 (f64 for f64). One thread computes
// each result element from everything that it depends on, also in the backward
// pass, so there are no atomics. The windows inside the image have one phase.
// Each kind of window that extends beyond a border has another, so that all
// tasks of a phase run the same statements.
//
// Besides the pooling, a body may contain (see passes/fusion/fuse_pool.cc)
//   - max_pool_gathers of the same windows, by the index that it stores;
//   - elementwise nodes, broadcast constants, and broadcast scalars and vectors
//     along dimension 1. Those before the pooling or a gather are recomputed
//     for each element of a window; those after the pooling's first result are
//     computed per result element.
// Operands of windows are rounded to their dtype first, as if read from memory.
// Everything else is rounded when stored or, with `eager`, at every node.
//
// Supports any layout without tiles. Lanes run along the channels, which is
// fastest for channels-last.
LoweredKernel LowerPool(const ir::Graph& body, const ir::Target& target,
                        bool eager);

}  // namespace fusor::codegen
