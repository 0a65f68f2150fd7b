#include "codegen/lower/lower_fusion.h"

#include "codegen/lower/data_movement.h"
#include "codegen/lower/lower_loops.h"
#include "codegen/lower/lower_pool.h"
#include "codegen/lower/multi_tensor_reduce.h"
#include "codegen/lower/multi_tensor_update.h"
#include "codegen/lower/space_to_depth.h"
#include "ir/op.h"
#include "passes/fusion/iteration_domain.h"

namespace fusor::codegen {

using ir::Node;

LoweredKernel LowerFusion(const Node& fusion, const ir::Target& target) {
  if (fusion.attrs().String("kind") == "multi_tensor") {
    return LowerMultiTensorUpdate(fusion, target);
  }
  const bool eager = fusion.attrs().String("rounding") == "eager";
  const ir::Graph& body = *fusion.body();
  if (PoolingOf(body) != nullptr) return LowerPool(body, target, eager);
  if (body.nodes().size() == 1 && !passes::IsFusible(*body.nodes()[0])) {
    if (body.nodes()[0]->kind() == ir::OpKind::kSpaceToDepth) {
      return LowerSpaceToDepth(body, target);
    }
    const bool scatters =
        body.nodes()[0]->op().fusion != ir::FusionKind::kSeparate;
    return scatters ? LowerDataMovement(body, target)
                    : LowerMultiTensorReduce(body, target);
  }
  return LowerLoops(body, target, eager);
}

}  // namespace fusor::codegen
