#include "ir/target/flops.h"

#include "ir/library_fusion.h"
#include "ir/op.h"
#include "ir/target/cost.h"

namespace fusor::codegen {

int64_t NodeFlops(const ir::Node& node) {
  if (IsLibraryFusion(node)) return NodeFlops(ir::LibraryOp(node));
  if (node.body() != nullptr) {
    int64_t flops = 0;
    for (const auto& inner : node.body()->nodes()) flops += NodeFlops(*inner);
    return flops;
  }
  switch (node.op().fusion) {
    case ir::FusionKind::kElementwise:
      return node.output()->type().num_elements();
    case ir::FusionKind::kReduce:
      return node.input(0)->type().num_elements();
    case ir::FusionKind::kSeparate: {
      int64_t elements = 0;
      for (const ir::Value* input : node.inputs()) {
        elements += input->type().num_elements();
      }
      return elements;
    }
    case ir::FusionKind::kLibrary: {
      const int64_t macs = ir::NodeMacs(node);
      return macs > 0 ? 2 * macs : node.input(0)->type().num_elements();
    }
    default:
      return 0;
  }
}

}  // namespace fusor::codegen
