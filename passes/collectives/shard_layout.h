#pragma once

#include "ir/builder.h"
#include "ir/graph.h"

namespace fusor::passes {

// Shards parameters (ir/shard.h) in the physical order of their layouts, once
// these are known. Gradients in that layout are reduced, and parameters
// gathered, without layout copies. For a weight f32[64,20]{ba}
//
//   %r = copy(%dw) {layout=""} : f32[64,20]      of %dw : f32[64,20]{ba}
//   %s = reduce_scatter(%r) {parts=2} : f32[640]
//   ...
//   %rows = reshape(%gathered) : f32[64,20]
//   %next = copy(%rows) {layout="ba"} : f32[64,20]{ba}
//
// becomes
//
//   %f = flatten(%dw) {order="ba"} : f32[1280]
//   %s = reduce_scatter(%f) {parts=2} : f32[640]
//   ...
//   %next = unflatten(%gathered) {shape=[64,20], order="ba"} : f32[64,20]{ba}
//
// Returns true if there are any sharded parameters that are not row-major.
bool ShardInPhysicalLayout(ir::Graph& graph);

// Returns `flat` as a value of `type`. The elements of `flat` are in the
// physical order of the type's layout.
ir::Value* UnflattenParts(ir::Builder& builder, ir::Value* flat,
                          const ir::TensorType& type);

// All-gathers the shards of a tensor of `type`; `part` is this rank's shard.
ir::Value* GatherParts(ir::Builder& builder, ir::Value* part,
                       const ir::TensorType& type, int64_t ranks);

}  // namespace fusor::passes
