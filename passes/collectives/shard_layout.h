#pragma once

#include "ir/builder.h"
#include "ir/graph.h"

namespace fusor::passes {

// Has the parts of parameters (ir/shard.h) taken in the physical order of the
// parameters' layouts, which are known: gradients in that layout are summed,
// and parameters gathered, as they lie. Of a weight f32[64,20]{ba}
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
// True when there are any.
bool ShardInPhysicalLayout(ir::Graph& graph);

// `flat`, elements in the order of the type's layout, as that type.
ir::Value* UnflattenParts(ir::Builder& builder, ir::Value* flat,
                          const ir::TensorType& type);
bool IsUnflatten(const ir::Node& node);

// All ranks' parts of a tensor of that type.
ir::Value* GatherParts(ir::Builder& builder, ir::Value* part,
                       const ir::TensorType& type, int64_t ranks);

}  // namespace fusor::passes
