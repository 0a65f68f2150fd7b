#pragma once

// Lowers fusion nodes to kernels. One function per kind of body, each with the
// bodies that it takes. A kernel, including its reduction trees, depends only
// on the body, its types and attributes, and the target.

#include <unordered_map>
#include <vector>

#include "codegen/kernel/kernel_ir.h"
#include "ir/graph.h"
#include "ir/target/target.h"

namespace fusor::codegen {

// The kernel of a fusion node. Order of the kernel's buffers: operands,
// results, scratch.
struct LoweredKernel {
  Kernel kernel;

  // Result `result` may alias operand `operand` (indices of the node): the same
  // task reads each element for the last time before, or when, it writes it.
  struct Alias {
    int operand;
    int result;
  };
  std::vector<Alias> in_place;

  // The node's operands and results in each kernel buffer that is not scratch.
  // A buffer holds one tensor, except in "multi_tensor" fusions: there it may
  // span several tensors, contiguous in this order, each padded to
  // kBufferAlignment bytes. The same applies to cached weight casts.
  std::vector<std::vector<int>> operand_spans;
  std::vector<std::vector<int>> result_spans;
};

using LoweredNodes = std::unordered_map<const ir::Node*, LoweredKernel>;

// Returns the kernel without aliases. REQUIRES: its buffers are the inputs and
// the outputs of the body, then scratch.
LoweredKernel OneBufferPerTensor(Kernel kernel, const ir::Graph& body);

// Calls CheckResults of access_analysis.h with the padded buffers of the
// kernel.
void CheckResults(const LoweredKernel& lowered);

// Lowers a fusion node by the function below that takes it. REQUIRES: a pass of
// passes/fusion created the node.
LoweredKernel LowerFusion(const ir::Node& fusion, const ir::Target& target);

// --- Bodies ------------------------------------------------------------------

// Loops over one domain, with reductions or without. `eager` rounds the result
// of every op. `reload`: passes over the reduction axes load what earlier ones
// stored instead of recomputing it, so that more results may alias operands.
// REQUIRES: passes::AnalyzeDomain accepts the body.
LoweredKernel LowerLoops(const ir::Graph& body, const ir::Target& target,
                         bool eager, bool reload = false);

// max_pool, max_pool_gather, avg_pool and the gradients of pooling, as the
// interpreter defines them. Sums in f32 (f64 for f64). One thread computes each
// result element from everything that it depends on, also in the backward pass,
// so there are no atomics. The windows inside the image have one phase. Each
// kind of window that extends beyond a border has another, so that all tasks of
// a phase run the same statements.
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

// A depthwise convolution, its data gradient with stride 1 or its weight
// gradient, the only node of the body, for filters of any size: loops over the
// filter, or over the pixels. Pixels outside of the image count as 0. Sums in
// f32 (f64 for f64); a weight gradient sums parts of images first. Layouts as
// for LowerPool.
LoweredKernel LowerDepthwise(const ir::Graph& body, const ir::Target& target,
                             bool eager);

// A matmul or a 1x1 convolution, in tiles of registers, and elementwise nodes
// that compute its operands or read its result (passes/fusion/contraction.h).
// Vectors run along the result's fastest dimension. The factor that changes
// along it is packed first if its vectors are not contiguous. Long sums are
// divided into chunks, which a further phase adds. Sums 16-bit floats in f32.
// REQUIRES: passes::AnalyzeContraction accepts the body; the target is a CPU.
LoweredKernel LowerContraction(const ir::Graph& body, const ir::Target& target,
                               bool eager);

// The same on the tensor cores of a GPU, for factors of 16-bit floats. The body
// may have column sums.
// REQUIRES: the nest has one axis of rows, of columns and of sums besides those
// of both factors; the fastest axis of each factor is one of them; the result's
// is that of columns. For a convolution alone, with channels last,
// ir::FitsTensorCores implies all of it.
LoweredKernel LowerTensorCore(const ir::Graph& body, const ir::Target& target,
                              bool eager);

// Returns the pooling of a body, its first node with a window, or its strided
// depthwise data gradient; null if there is neither.
const ir::Node* PoolingOf(const ir::Graph& body);

// concat, pad or copy, the only node of the body, which store each operand into
// a part of the result (copy: all of it, in another layout). One phase per
// operand; for pad, a phase before it fills the result. A result of pad is
// row-major; if one of concat is tiled, each operand fills whole tiles.
LoweredKernel LowerDataMovement(const ir::Graph& body,
                                const ir::Target& target);

// space_to_depth, the only node of the body, whose inputs are its operands, in
// order. A thread computes its channels of all rows of a block of pixels. The
// zero row and the zero column, if any, have separate phases. Computes in f32
// and rounds on store. Images are row-major; the result has any layout without
// tiles.
LoweredKernel LowerSpaceToDepth(const ir::Graph& body,
                                const ir::Target& target);

// scatter_add, the only node of the body. Elements of the result belong to one
// task, which adds their updates in order. Sums 16-bit floats in f32.
LoweredKernel LowerScatterAdd(const ir::Graph& body, const ir::Target& target);

// cumsum, the only node of the body. A thread computes all sums along the
// dimension. Sums 16-bit floats in f32.
LoweredKernel LowerCumulativeSum(const ir::Graph& body,
                                 const ir::Target& target);

// all_finite or sum_of_squares, the only node of the body. Each task reduces an
// equal share of every operand. Contiguous operands (attribute `groups`) are
// one buffer; their padding is skipped. The order of a sum does not depend on
// the groups. The result of all_finite does not depend on the order of the
// operands. With `eager`, squares are rounded before they are added, so that
// they are the same whether an operand appears once or twice.
LoweredKernel LowerMultiTensorReduce(const ir::Graph& body,
                                     const ir::Target& target, bool eager);

// A "multi_tensor" fusion (passes::FuseUpdates): equal chains of elementwise
// ops and sums over whole tensors, over several contiguous tensors, and copies
// of some results in other dtypes and layouts. With sums, each tensor has
// separate phases. Otherwise one phase covers adjacent tensors without copies
// or, with attribute copies_together, adjacent tensors whose copies are
// contiguous in the same order; these copies share a buffer. Any other tensor
// with copies gets a separate phase.
LoweredKernel LowerMultiTensorUpdate(const ir::Node& fusion,
                                     const ir::Target& target);

// --- All kernels of a graph --------------------------------------------------

// Sets KernelBuffer::packed of every bool tensor that only fusions access, and
// only by whole bytes. Skips inputs and outputs of the graph unless `interface`
// is set. A step run alone needs `interface` to get the kernel that it has in
// its program.
void PackBitmasks(const ir::Graph& graph, LoweredNodes& lowered,
                  bool interface = false);

// Returns whether a kernel reads the value as a bitmask.
bool IsReadPacked(const ir::Value& value, const LoweredNodes& lowered);

}  // namespace fusor::codegen
