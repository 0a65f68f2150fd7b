// NVIDIA Apex's level O2 keeps gradients in the 16-bit type of the weights and
// sends them so; those of normalisations stay f32, as their parameters do. So
// does compression for the wire alone, as Horovod's and that of PyTorch's
// fp16_compress_hook; on one rank there is no wire.

#include "ir/builder.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "passes/passes.h"
#include "passes/training_state.h"

namespace fusor::passes {

using ir::InputRole;
using ir::Node;

namespace {

ir::DType WireType(const PassOptions& options) {
  const PrecisionOptions& precision = options.precision;
  if (precision.wire.has_value() && options.world_size > 1) {
    const ir::DType wire = *precision.wire;
    FUSOR_CHECK(wire == ir::DType::kF32 || wire == ir::DType::kF16 ||
                    wire == ir::DType::kBF16,
                kUsage,
                "gradients on the wire: expected f32, f16 or bf16, "
                "got {}",
                ir::DTypeName(wire));
    return wire;
  }
  return precision.narrow_gradients ? precision.dtype : ir::DType::kF32;
}

}  // namespace

bool NarrowGradients(ir::Graph& graph, PassContext& context) {
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
    FUSOR_ASSERT(reduction != nullptr && !reduction->op().pure,
                 "gradient {} is not a sum over ranks", g.gradient->name());
    ir::Builder builder(graph, reduction);
    builder.Inherit(reduction->location());
    reduction->SetInput(0, builder.Cast(reduction->input(0), wire));
    g.gradient->set_type(reduction->input(0)->type());
    changed = true;
  }
  return changed;
}

}  // namespace fusor::passes
