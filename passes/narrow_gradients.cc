// NVIDIA Apex's level O2 keeps gradients in the 16-bit type of the weights and
// sends them so; those of normalisations stay f32, as their parameters do.

#include "ir/builder.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "passes/passes.h"
#include "passes/training_state.h"

namespace fusor::passes {

using ir::InputRole;
using ir::Node;

bool NarrowGradients(ir::Graph& graph, PassContext& context) {
  const PrecisionOptions& options = context.options().precision;
  if (!options.narrow_gradients || options.dtype == ir::DType::kF32) {
    return false;
  }
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
    reduction->SetInput(0, builder.Cast(reduction->input(0), options.dtype));
    g.gradient->set_type(reduction->input(0)->type());
    changed = true;
  }
  return changed;
}

}  // namespace fusor::passes
