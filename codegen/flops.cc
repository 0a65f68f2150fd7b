#include "codegen/flops.h"

#include "ir/op.h"

namespace fusor::codegen {
namespace {

using ir::Node;
using ir::Shape;

// The gradient of a convolution has as many as the convolution itself: of
// either, the larger side's [N,O,H',W'] elements times a weight's [C/g,KH,KW].
int64_t ConvFlops(const Shape& result, const Shape& weight) {
  return 2 * ir::NumElements(result) * weight[1] * weight[2] * weight[3];
}

int64_t LibraryFlops(const Node& node) {
  const ir::Attrs& attrs = node.attrs();
  if (node.op_name() == "matmul") {
    const Shape& a = node.input(0)->type().shape;
    const size_t inner = a.size() - (attrs.Bool("transpose_a") ? 2 : 1);
    return 2 * node.output()->type().num_elements() * a[inner];
  }
  if (attrs.Has("weight_shape")) {
    return ConvFlops(node.input(1)->type().shape, attrs.Ints("weight_shape"));
  }
  if (attrs.Has("groups")) {
    const bool forward = !attrs.Has("input_shape");
    const ir::Value* result = forward ? node.output() : node.input(0);
    return ConvFlops(result->type().shape, node.input(1)->type().shape);
  }
  return node.input(0)->type().num_elements();
}

}  // namespace

int64_t NodeFlops(const Node& node) {
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
    case ir::FusionKind::kLibrary:
      return LibraryFlops(node);
    default:
      return 0;
  }
}

}  // namespace fusor::codegen
