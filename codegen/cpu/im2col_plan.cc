#include "codegen/cpu/im2col_plan.h"

#include <algorithm>

#include "codegen/cpu/onednn_layout.h"
#include "codegen/cpu/onednn_primitives.h"
#include "codegen/cpu/winograd_plan.h"
#include "ir/target/cost.h"

namespace fusor::cpu {
namespace {

using ir::ConvKind;
using ir::Convolution;
using ir::DType;
using ir::Layout;
using ir::TensorType;

bool IsOnePixel(const TensorType& weight) {
  return weight.shape[2] == 1 && weight.shape[3] == 1;
}

Layout WeightLayout(const TensorType& weight) {
  return IsOnePixel(weight) ? Layout{} : ChannelsLast();
}

// oneDNN 2.6 pads rows of other lengths, which costs more than AMX gains.
bool HasWholeRows(const Convolution& conv) {
  constexpr int64_t kElements = 8;  // 16 bytes of bf16
  const ir::Shape& w = conv.weight.shape;
  return w[1] * w[2] * w[3] % kElements == 0 && w[0] % kElements == 0;
}

bool CanBeMatmul(const Convolution& conv, const ir::Attrs& attrs) {
  if (attrs.Int("groups") != 1) return false;
  const DType x = conv.x.dtype, weight = conv.weight.dtype;
  if (conv.y.dtype != x) return false;
  switch (conv.kind) {
    case ConvKind::kForward:
      return false;
    case ConvKind::kGradInput:
      return x == DType::kBF16 && weight == x && IsOnePixel(conv.weight) &&
             attrs.Ints("pad") == std::vector<int64_t>{0, 0};
    case ConvKind::kGradWeight:
      return x == DType::kF32
                 ? weight == x
                 : x == DType::kBF16 && (weight == x || weight == DType::kF32);
  }
  return false;
}

// Returns nullopt if there is no kernel for the matmul.
std::optional<Im2colPlan> Plan(const Convolution& conv, const ir::Attrs& attrs,
                               bool amx) {
  const auto& [kind, x, weight, y] = conv;
  Im2colPlan plan{.kind = kind,
                  .channels = x.shape[1],
                  .height = x.shape[2],
                  .width = x.shape[3],
                  .out_channels = y.shape[1],
                  .out_height = y.shape[2],
                  .out_width = y.shape[3],
                  .kernel_height = weight.shape[2],
                  .kernel_width = weight.shape[3],
                  .rows = y.shape[0] * y.shape[2] * y.shape[3],
                  .patch = weight.shape[2] * weight.shape[3] * x.shape[1],
                  .element_bytes = static_cast<int64_t>(DTypeSize(x.dtype)),
                  .stride = attrs.Ints("stride"),
                  .pad = attrs.Ints("pad"),
                  .dilation = attrs.Ints("dilation")};
  const TensorType patches{x.dtype, {plan.rows, plan.patch}, {}};
  const TensorType dy{y.dtype, {plan.rows, plan.out_channels}, {}};
  const TensorType matrix{weight.dtype, {plan.out_channels, plan.patch}, {}};
  ir::Attrs transposed;
  transposed.Set("transpose_a", kind == ConvKind::kGradWeight);
  transposed.Set("transpose_b", false);
  const bool of_weight = kind == ConvKind::kGradWeight;
  const TensorType& b = of_weight ? patches : matrix;
  const TensorType& result = of_weight ? matrix : patches;
  const auto own = PlanAmxMatmul(dy, b, result, transposed);
  if (amx && own.has_value() && own->is_fast()) {
    plan.product = *own;
    return plan;
  }
  const auto product = Matmul(dy, b, result, transposed);
  if (!product.has_value()) return std::nullopt;
  plan.product = OneDnnPlan{{*product,
                             {{DNNL_ARG_SRC, product->src_desc()},
                              {DNNL_ARG_WEIGHTS, product->weights_desc()},
                              {DNNL_ARG_DST, product->dst_desc()}}}};
  return plan;
}

}  // namespace

bool Im2colPlan::in_place() const {
  const std::vector<int64_t> ones{1, 1}, zeros{0, 0};
  return kernel_height == 1 && kernel_width == 1 && stride == ones &&
         pad == zeros;
}

int64_t Im2colPlan::workspace_bytes() const {
  return codegen::PadToAlignment(patch_bytes()) +
         std::visit([](const auto& p) { return p.workspace_bytes(); }, product);
}

std::string Im2colPlan::implementation() const {
  return "im2col:" +
         std::visit([](const auto& p) { return p.implementation(); }, product);
}

std::optional<ir::LibraryCandidate> Im2colCandidate(const ir::Node& node,
                                                    const ir::Target& target) {
  const auto conv = ir::ConvolutionOf(node);
  if (!conv.has_value() || !CanBeMatmul(*conv, node.attrs()) ||
      (conv->x.dtype == DType::kBF16 &&
       (!target.amx || !HasWholeRows(*conv)))) {
    return std::nullopt;
  }
  const auto plan = Plan(*conv, node.attrs(), target.amx);
  if (!plan.has_value() ||
      plan->implementation().find("ref") != std::string::npos) {
    return std::nullopt;
  }
  ir::LibraryCandidate c;
  c.name = c.algorithm = kIm2col;
  c.implementation = plan->implementation();
  c.workspace_bytes = plan->workspace_bytes();
  // Patches are written and read.
  c.modelled_ns =
      ir::DirectNs(node, target) +
      static_cast<int64_t>(2 * static_cast<double>(plan->patch_bytes()) /
                           std::max(target.memory_gb_per_s, 1.0));
  if (conv->kind == ConvKind::kGradWeight) {
    c.operands = {ChannelsLast(), ChannelsLast()};
    c.results = {WeightLayout(conv->weight)};
  } else {
    c.operands = {ChannelsLast(), WeightLayout(conv->weight)};
    c.results = {ChannelsLast()};
  }
  return c;
}

std::optional<Im2colPlan> PlanIm2col(const codegen::LibraryCall& call,
                                     bool amx) {
  const auto found = ConvolutionBy(call, kIm2col);
  if (!found.has_value()) return std::nullopt;
  const Convolution& conv = *found;
  if (!CanBeMatmul(conv, call.attrs) || conv.x.layout != ChannelsLast() ||
      conv.y.layout != ChannelsLast() ||
      conv.weight.layout != WeightLayout(conv.weight)) {
    return std::nullopt;
  }
  return Plan(conv, call.attrs, amx);
}

}  // namespace fusor::cpu
