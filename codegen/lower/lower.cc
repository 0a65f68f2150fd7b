#include "codegen/lower/lower.h"

#include <utility>

#include "codegen/kernel/access_analysis.h"
#include "ir/library_fusion.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "ir/target/conv_problem.h"
#include "passes/fusion/contraction.h"
#include "passes/fusion/iteration_domain.h"

namespace fusor::codegen {

LoweredKernel OneBufferPerTensor(Kernel kernel, const ir::Graph& body) {
  LoweredKernel lowered;
  lowered.kernel = std::move(kernel);
  for (size_t i = 0; i < body.inputs().size(); ++i) {
    lowered.operand_spans.push_back({static_cast<int>(i)});
  }
  for (size_t i = 0; i < body.outputs().size(); ++i) {
    lowered.result_spans.push_back({static_cast<int>(i)});
  }
  return lowered;
}

void CheckResults(const LoweredKernel& lowered) {
  std::vector<bool> padded;
  for (const auto* spans : {&lowered.operand_spans, &lowered.result_spans}) {
    for (const std::vector<int>& span : *spans) {
      padded.push_back(span.size() > 1);
    }
  }
  CheckResults(lowered.kernel, padded);
}

LoweredKernel LowerFusion(const ir::Node& fusion, const ir::Target& target) {
  FUSOR_ASSERT(ir::IsKernelFusion(fusion), "{}: a library call has no kernel",
               fusion.output()->name());
  if (fusion.attrs().String("kind") == "multi_tensor") {
    return LowerMultiTensorUpdate(fusion, target);
  }
  const bool eager = fusion.attrs().String("rounding") == "eager";
  const ir::Graph& body = *fusion.body();
  if (PoolingOf(body) != nullptr) return LowerPool(body, target, eager);
  if (ir::IsDepthwise(*body.nodes()[0])) {
    return LowerDepthwise(body, target, eager);
  }
  if (passes::ContractionIn(body) != nullptr) {
    return target.simt ? LowerTensorCore(body, target, eager)
                       : LowerContraction(body, target, eager);
  }
  const ir::Node& node = *body.nodes()[0];
  if (body.nodes().size() > 1 || passes::IsFusible(node)) {
    return LowerLoops(body, target, eager);
  }
  switch (node.kind()) {
    case ir::OpKind::kScatterAdd:
      return LowerScatterAdd(body, target);
    case ir::OpKind::kCumulativeSum:
      return LowerCumulativeSum(body, target);
    case ir::OpKind::kAllFinite:
    case ir::OpKind::kSumOfSquares:
      return LowerMultiTensorReduce(body, target, eager);
    case ir::OpKind::kSpaceToDepth:
      return LowerSpaceToDepth(body, target);
    default:
      return LowerDataMovement(body, target);
  }
}

}  // namespace fusor::codegen
