#include "codegen/cpu/winograd_plan.h"

#include <omp.h>

#include <algorithm>

#include "ir/library_fusion.h"
#include "ir/target/cost.h"

namespace fusor::cpu {
namespace {

using codegen::LibraryCall;
using ir::ConvKind;
using ir::DType;

// Padding between points: strides of a power of two would map all points of a
// tile to the same cache set.
constexpr int64_t kStridePad = 96;  // elements, of bf16

// Returns whether this machine's CPU has the instructions: AVX-512 with bf16.
bool HasInstructions() {
  return __builtin_cpu_supports("avx512f") != 0 &&
         __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0 &&
         __builtin_cpu_supports("avx512bf16") != 0;
}

// Layouts of x, weight and y. A data gradient reads the weight with the input
// and output channels of its blocks swapped.
struct Layouts {
  ir::Layout x, weight, y;
};

Layouts LayoutsOf(ConvKind kind) {
  const ir::Layout blocked = ir::Canonical(ir::ParseLayout("aBcd16b"));
  return {blocked,
          ir::Canonical(ir::ParseLayout(
              kind == ConvKind::kGradInput ? "ABcd16a16b" : "ABcd16b16a")),
          blocked};
}

bool AppliesInBf16(const ir::Convolution& conv, const ir::Attrs& attrs) {
  const DType weight = conv.weight.dtype;
  const bool dtypes =
      conv.x.dtype == DType::kBF16 && conv.y.dtype == DType::kBF16 &&
      (weight == DType::kBF16 ||
       (weight == DType::kF32 && conv.kind == ConvKind::kGradWeight));
  const auto& pad = attrs.Ints("pad");
  return HasInstructions() && attrs.Int("groups") == 1 &&
         ir::HasWinogradGeometry(conv.weight.shape, attrs) && dtypes &&
         conv.x.shape[1] % kWinogradBlock == 0 &&
         conv.y.shape[1] % kWinogradBlock == 0 && std::max(pad[0], pad[1]) <= 2;
}

// Returns the tiles per block. Their transformed input and a group of their
// results fit the L2 cache, blocks are of equal size, and there are enough rows
// to amortise loading the weights. A multiple of the 6 rows that are multiplied
// together.
int64_t ConvBlock(const WinogradShape& shape, int64_t parts) {
  const int64_t most =
      std::clamp<int64_t>(16384 / shape.padded_in_channels(), 30, 96);
  const int64_t share = CeilDiv(shape.tiles(), parts);
  const int64_t blocks = CeilDiv(share, most);
  return CeilDiv(CeilDiv(share, blocks), 6) * 6;
}

WinogradConvPlan PlanConv(const WinogradShape& shape, int64_t parts) {
  WinogradConvPlan plan{.shape = shape, .parts = parts};
  const int64_t in_channels = shape.padded_in_channels();
  plan.block = ConvBlock(shape, parts);
  plan.v_stride = plan.block * in_channels + kStridePad;
  plan.m_stride = plan.block * kWinogradGroup * kWinogradBlock + kStridePad / 2;
  plan.u_bytes = kWinogradPoints * shape.out_channels * in_channels * 2;
  plan.v_bytes = kWinogradPoints * plan.v_stride * 2;
  plan.m_bytes = kWinogradPoints * plan.m_stride * 4;
  return plan;
}

// Returns the number of parts along channels. Each part repeats the input
// transforms, which must stay cheap relative to its groups.
int64_t GroupParts(const WinogradShape& shape, int64_t parts) {
  int64_t group_parts = 1;
  while (parts % (2 * group_parts) == 0 &&
         shape.out_channels >= 512 * group_parts) {
    group_parts *= 2;
  }
  return group_parts;
}

// Returns the tiles per block: at most 256, which amortises loading and storing
// the sums, in blocks of equal size. Even, because tiles are paired.
int64_t GradWeightBlock(const WinogradShape& shape, int64_t tile_parts) {
  const int64_t share = CeilDiv(shape.tiles(), tile_parts);
  const int64_t blocks = CeilDiv(share, 256);
  return CeilDiv(CeilDiv(share, blocks), 2) * 2;
}

WinogradGradWeightPlan PlanGradWeight(const WinogradShape& shape, int64_t parts,
                                      DType result) {
  WinogradGradWeightPlan plan{.shape = shape, .parts = parts, .result = result};
  plan.group_parts = GroupParts(shape, parts);
  plan.tile_parts = parts / plan.group_parts;
  plan.part_groups = CeilDiv(shape.out_groups(), plan.group_parts);
  plan.block = GradWeightBlock(shape, plan.tile_parts);
  plan.v_stride = plan.block * shape.in_channels + kStridePad;
  plan.w_stride =
      plan.block * plan.part_groups * kWinogradGroup * kWinogradBlock +
      kStridePad;
  plan.sums = kWinogradPoints * shape.in_channels * shape.out_channels;
  plan.own_bytes = kWinogradPoints * (plan.v_stride + plan.w_stride) * 2;
  return plan;
}

// `bias`: the dtype of the bias; nullopt if there is none.
WinogradPlan Plan(const ir::Convolution& conv, const ir::Attrs& attrs,
                  std::optional<DType> bias, bool relu) {
  const WinogradShape shape{WinogradGeometryOf(conv, attrs)};
  const int64_t parts = omp_get_max_threads();
  if (conv.kind == ConvKind::kGradWeight) {
    return PlanGradWeight(shape, parts, conv.weight.dtype);
  }
  WinogradConvPlan plan = PlanConv(shape, parts);
  plan.flipped = conv.kind == ConvKind::kGradInput;
  plan.relu = relu;
  plan.bias = bias;
  return plan;
}

}  // namespace

WinogradGeometry WinogradGeometryOf(const ir::Convolution& conv,
                                    const ir::Attrs& attrs) {
  const bool flipped = conv.kind == ConvKind::kGradInput;
  const ir::Shape& in = (flipped ? conv.y : conv.x).shape;
  const ir::Shape& out = (flipped ? conv.x : conv.y).shape;
  const auto& pad = attrs.Ints("pad");
  const int64_t groups = attrs.Int("groups");
  return {.images = in[0],
          .groups = groups,
          .in_channels = in[1] / groups,
          .in_height = in[2],
          .in_width = in[3],
          .out_channels = out[1] / groups,
          .out_height = out[2],
          .out_width = out[3],
          .pad_height = flipped ? 2 - pad[0] : pad[0],
          .pad_width = flipped ? 2 - pad[1] : pad[1]};
}

std::optional<ir::Convolution> ConvolutionBy(const LibraryCall& call,
                                             std::string_view algorithm) {
  if (!call.HasTrait(ir::OpTrait::kConvolution) ||
      call.attrs.String("algorithm") != algorithm) {
    return std::nullopt;
  }
  const ir::TensorType& a = call.operands[0];
  const ir::TensorType& b = call.operands[1];
  const ir::TensorType& result = call.results[0];
  switch (call.op) {
    case ir::OpKind::kConv2dGradInput:
      return ir::Convolution{ConvKind::kGradInput, result, b, a};
    case ir::OpKind::kConv2dGradWeight:
      return ir::Convolution{ConvKind::kGradWeight, a, result, b};
    default:
      return ir::Convolution{ConvKind::kForward, a, b, result};
  }
}

int64_t WorkspaceBytes(const WinogradPlan& plan) {
  return std::visit([](const auto& p) { return p.workspace_bytes(); }, plan);
}

std::optional<ir::LibraryCandidate> WinogradCandidate(
    const ir::Node& node, const ir::Target& target) {
  const auto conv = ir::ConvolutionOf(node);
  if (!conv.has_value() || target.winograd_efficiency == 0 ||
      !target.bf16_matmul || target.channel_block() != kWinogradBlock) {
    return std::nullopt;
  }
  const auto epilogue = ir::EpilogueOf(node);
  const ir::Attrs& attrs = ir::LibraryOp(node).attrs();
  if (!epilogue.has_value() || !AppliesInBf16(*conv, attrs)) {
    return std::nullopt;
  }
  std::optional<DType> bias;
  if (conv->kind == ConvKind::kForward && node.num_inputs() == 3) {
    bias = node.input(2)->type().dtype;
  }
  const auto [x, weight, y] = LayoutsOf(conv->kind);
  ir::LibraryCandidate c;
  c.name = c.algorithm = "winograd";
  c.implementation = kWinogradImplementation;
  c.workspace_bytes = WorkspaceBytes(Plan(*conv, attrs, bias, epilogue->relu));
  c.modelled_ns = ir::WinogradNs(*conv, target);
  switch (conv->kind) {
    case ConvKind::kForward:
      c.operands = {x, weight};
      if (bias.has_value()) c.operands.emplace_back();
      c.results = {y};
      break;
    case ConvKind::kGradInput:
      c.operands = {y, weight};
      c.results = {x};
      break;
    case ConvKind::kGradWeight:
      c.operands = {x, y};
      c.results = {weight};
      break;
  }
  return c;
}

std::optional<WinogradPlan> PlanWinograd(const LibraryCall& call) {
  const auto found = ConvolutionBy(call, "winograd");
  if (!found.has_value()) return std::nullopt;
  const ir::Convolution& conv = *found;
  const auto epilogue = ir::EpilogueOf(call.body.get());
  const auto [x, weight, y] = LayoutsOf(conv.kind);
  if (!epilogue.has_value() || !AppliesInBf16(conv, call.attrs) ||
      conv.x.layout != x || conv.weight.layout != weight ||
      conv.y.layout != y) {
    return std::nullopt;
  }
  std::optional<DType> bias;
  if (call.operands.size() == 3) bias = call.operands[2].dtype;
  return Plan(conv, call.attrs, bias, epilogue->relu);
}

}  // namespace fusor::cpu
