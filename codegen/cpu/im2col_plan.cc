#include "codegen/cpu/im2col_plan.h"

#include "ir/target/conv_problem.h"
#include "ir/target/cost.h"

namespace fusor::cpu {
namespace {

using ir::ConvKind;
using ir::DType;
using ir::Layout;
using ir::TensorType;

// Returns the physical layout [N, H, W, C] or [O, KH, KW, C].
const Layout& ChannelsLast() {
  static const auto& layout = *new Layout{{0, 2, 3, 1}, {}};
  return layout;
}

bool Applies(ConvKind kind, const TensorType& x, const TensorType& weight,
             const TensorType& y, const ir::Attrs& attrs) {
  return kind == ConvKind::kGradWeight && attrs.Int("groups") == 1 &&
         x.dtype == DType::kF32 && weight.dtype == DType::kF32 &&
         y.dtype == DType::kF32;
}

Im2colPlan Plan(const TensorType& x, const TensorType& weight,
                const TensorType& y, const ir::Attrs& attrs) {
  const int64_t kernel_height = weight.shape[2];
  const int64_t kernel_width = weight.shape[3];
  return {.channels = x.shape[1],
          .height = x.shape[2],
          .width = x.shape[3],
          .out_channels = y.shape[1],
          .out_height = y.shape[2],
          .out_width = y.shape[3],
          .kernel_height = kernel_height,
          .kernel_width = kernel_width,
          .rows = y.shape[0] * y.shape[2] * y.shape[3],
          .patch = kernel_height * kernel_width * x.shape[1],
          .stride = attrs.Ints("stride"),
          .pad = attrs.Ints("pad"),
          .dilation = attrs.Ints("dilation")};
}

}  // namespace

std::optional<ir::LibraryCandidate> Im2colCandidate(const ir::Node& node,
                                                    const ir::Target& target) {
  const auto conv = ir::ConvolutionOf(node);
  if (!conv.has_value() ||
      !Applies(conv->kind, conv->x, conv->weight, conv->y, node.attrs())) {
    return std::nullopt;
  }
  ir::LibraryCandidate c;
  c.name = c.algorithm = kIm2col;
  c.implementation = kIm2colImplementation;
  c.workspace_bytes =
      Plan(conv->x, conv->weight, conv->y, node.attrs()).workspace_bytes();
  c.modelled_ns = ir::DirectNs(node, target);
  c.operands = {ChannelsLast(), ChannelsLast()};
  c.results = {ChannelsLast()};
  return c;
}

std::optional<Im2colPlan> PlanIm2col(const codegen::LibraryCall& call) {
  if (call.op != ir::OpKind::kConv2dGradWeight ||
      call.attrs.String("algorithm") != kIm2col) {
    return std::nullopt;
  }
  const TensorType& x = call.operands[0];
  const TensorType& y = call.operands[1];
  const TensorType& weight = call.results[0];
  if (!Applies(ConvKind::kGradWeight, x, weight, y, call.attrs) ||
      x.layout != ChannelsLast() || y.layout != ChannelsLast() ||
      weight.layout != ChannelsLast()) {
    return std::nullopt;
  }
  return Plan(x, weight, y, call.attrs);
}

}  // namespace fusor::cpu
