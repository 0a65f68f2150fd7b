// With mixed precision ranks communicate gradients in 16 bit, like NVIDIA Apex
// at level O2, Paddle Fleet, and Horovod and PyTorch with fp16 compression.
// This halves the bytes, and weight-gradient kernels write the communicated
// dtype directly. Gradients of normalisations stay f32, as their parameters do.
// The sum is not divided before communication: ScaleGradients divides it in
// f32, as Apex does by default.

#include "ir/builder.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "passes/passes.h"
#include "passes/training/training_state.h"

namespace fusor::passes {

using ir::InputRole;
using ir::Node;

namespace {

ir::DType WireType(const PassOptions& options) {
  const PrecisionOptions& precision = options.precision;
  if (options.world_size == 1) {
    return precision.narrow_gradients ? precision.dtype : ir::DType::kF32;
  }
  const ir::DType wire = precision.wire.value_or(precision.dtype);
  FUSOR_CHECK(
      wire == ir::DType::kF32 || wire == ir::DType::kF16 ||
          wire == ir::DType::kBF16,
      kUsage,
      "communication dtype of gradients: expected f32, f16 or bf16, got {}",
      ir::DTypeName(wire));
  return wire;
}

}  // namespace

bool CompressGradients(ir::Graph& graph, PassContext& context) {
  const ir::DType wire = WireType(context.options());
  if (wire == ir::DType::kF32) return false;
  bool changed = false;
  for (const ParameterGradient& g : CollectGradients(graph)) {
    const InputRole role = graph.inputs()[g.input].role;
    Node* reduction = g.gradient->producer();
    if (role == InputRole::kNormScale || role == InputRole::kNormShift ||
        g.gradient->type().dtype != ir::DType::kF32) {
      continue;
    }
    FUSOR_ASSERT(
        reduction != nullptr && reduction->HasTrait(ir::OpTrait::kCollective),
        "gradient {} is not all-reduced", g.gradient->name());
    ir::Builder builder(graph, reduction);
    builder.Inherit(reduction->location());
    reduction->SetInput(0, builder.Cast(reduction->input(0), wire));
    g.gradient->set_type(reduction->input(0)->type());
    changed = true;
  }
  return changed;
}

}  // namespace fusor::passes
