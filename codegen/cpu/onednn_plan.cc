#include "codegen/cpu/onednn_plan.h"

#include <algorithm>
#include <string_view>

#include "codegen/cpu/onednn_layout.h"
#include "codegen/cpu/onednn_primitives.h"
#include "ir/support/error.h"

namespace fusor::cpu {
namespace {

using codegen::LibraryCall;

bool IsReference(const dnnl::primitive_desc_base& desc) {
  return std::string_view(desc.impl_info_str()).find("ref") !=
         std::string_view::npos;
}

// Returns nullopt if oneDNN has no such copy, e.g. from f16 to bf16.
std::optional<PrimitivePlan> PlanReorder(const dnnl::memory::desc& from,
                                         const dnnl::memory::desc& to) {
  const auto reorder = Reorder(from, to);
  if (!reorder.has_value()) return std::nullopt;
  return PrimitivePlan{*reorder, {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}}};
}

bool DnnlTypes(const LibraryCall& call) {
  const auto has = [](const ir::TensorType& type) {
    return ToDnnl(type.dtype).has_value() && type.rank() >= 1;
  };
  return std::all_of(call.operands.begin(), call.operands.end(), has) &&
         std::all_of(call.results.begin(), call.results.end(), has);
}

// Returns `make`'s primitive descriptor for `d`. If oneDNN prefers a weight
// format that no layout of the IR describes, the step keeps the weight
// row-major and the result is for that format, which is stored in `d.weight`.
template <typename Make, typename WeightOf>
auto DescribeConv(ConvDescs& d, const ir::TensorType& weight, int64_t groups,
                  Make make, WeightOf weight_of) {
  if (weight.layout.is_row_major()) {
    ConvDescs any = d;
    any.weight = AnyDesc(GroupedWeight(weight, groups));
    const auto packed = make(any);
    if (packed.has_value() && !IsReference(*packed) &&
        !ToWeightLayout(weight_of(*packed)).has_value()) {
      d.weight = weight_of(*packed);
      return packed;
    }
  }
  return make(d);
}

// `plain`: the desc of the call's argument `weight`, in the call's layout.
OneDnnPlan FinishConv(PrimitivePlan conv, size_t weight,
                      const dnnl::memory::desc& plain) {
  const auto [role, packed] = conv.args[weight];
  if (packed == plain) return {std::move(conv)};
  const bool unpacks = role == DNNL_ARG_DIFF_WEIGHTS;
  PrimitivePlan reorder =
      unpacks ? *PlanReorder(packed, plain) : *PlanReorder(plain, packed);
  const int64_t scratch =
      std::max(conv.workspace_bytes(), reorder.workspace_bytes());
  return {std::move(conv),
          WeightPacking{.reorder = std::move(reorder),
                        .weight = weight,
                        .unpacks = unpacks,
                        .offset = codegen::PadToAlignment(scratch),
                        .bytes = static_cast<int64_t>(packed.get_size())}};
}

std::optional<OneDnnPlan> PlanConv(const LibraryCall& call) {
  const int64_t groups = call.attrs.Int("groups");
  ConvDescs d{ToDesc(call.operands[0]),
              ToDesc(GroupedWeight(call.operands[1], groups)),
              call.operands.size() == 3 ? ToDesc(call.operands[2])
                                        : dnnl::memory::desc(),
              ToDesc(call.results[0])};
  const dnnl::memory::desc plain = d.weight;
  const auto pd = DescribeConv(
      d, call.operands[1], groups,
      [&](const ConvDescs& descs) {
        return ConvForward(descs, call.attrs, call.attrs.String("algorithm"));
      },
      [](const auto& found) { return found.weights_desc(); });
  if (!pd.has_value()) return std::nullopt;
  PrimitivePlan conv{*pd, {{DNNL_ARG_SRC, d.x}, {DNNL_ARG_WEIGHTS, d.weight}}};
  if (call.operands.size() == 3) conv.args.push_back({DNNL_ARG_BIAS, d.bias});
  conv.args.push_back({DNNL_ARG_DST, d.y});
  return FinishConv(std::move(conv), 1, plain);
}

std::optional<OneDnnPlan> PlanConvGradInput(const LibraryCall& call) {
  const int64_t groups = call.attrs.Int("groups");
  ConvDescs d{ToDesc(call.results[0]),
              ToDesc(GroupedWeight(call.operands[1], groups)),
              {},
              ToDesc(call.operands[0])};
  const dnnl::memory::desc plain = d.weight;
  const auto pd = DescribeConv(
      d, call.operands[1], groups,
      [&](const ConvDescs& descs) {
        return ConvGradInput(descs, call.attrs, call.attrs.String("algorithm"));
      },
      [](const auto& found) { return found.weights_desc(); });
  if (!pd.has_value()) return std::nullopt;
  return FinishConv({*pd,
                     {{DNNL_ARG_DIFF_DST, d.y},
                      {DNNL_ARG_WEIGHTS, d.weight},
                      {DNNL_ARG_DIFF_SRC, d.x}}},
                    1, plain);
}

std::optional<OneDnnPlan> PlanConvGradWeight(const LibraryCall& call) {
  const int64_t groups = call.attrs.Int("groups");
  const bool flat = call.attrs.String("algorithm") == kFlat;
  const auto activation = [&](const ir::TensorType& type) {
    return ToDesc(flat ? Flattened(type) : type);
  };
  ConvDescs d{activation(call.operands[0]),
              ToDesc(GroupedWeight(call.results[0], groups)),
              {},
              activation(call.operands[1])};
  const dnnl::memory::desc plain = d.weight;
  const auto pd = DescribeConv(
      d, call.results[0], groups,
      [&](const ConvDescs& descs) {
        return ConvGradWeight(descs, call.attrs,
                              call.attrs.String("algorithm"));
      },
      [](const auto& found) { return found.diff_weights_desc(); });
  if (!pd.has_value()) return std::nullopt;
  return FinishConv({*pd,
                     {{DNNL_ARG_SRC, d.x},
                      {DNNL_ARG_DIFF_DST, d.y},
                      {DNNL_ARG_DIFF_WEIGHTS, d.weight}}},
                    2, plain);
}

std::optional<OneDnnPlan> PlanAvgPool(const LibraryCall& call) {
  const auto x = ToDesc(call.operands[0]);
  const auto y = ToDesc(call.results[0]);
  const auto pd = PoolForward(x, y, call.attrs, /*max=*/false);
  if (!pd.has_value()) return std::nullopt;
  return OneDnnPlan{{*pd, {{DNNL_ARG_SRC, x}, {DNNL_ARG_DST, y}}}};
}

// Returns whether max_pool's index can be oneDNN's workspace: a u8 tensor in
// the result's layout. Both hold the position in the window.
bool IndexFits(const dnnl::memory::desc& workspace, const ir::TensorType& y) {
  ir::TensorType index = y;
  index.dtype = ir::DType::kU8;
  return workspace == ToDesc(index);
}

std::optional<OneDnnPlan> PlanPoolGrad(const LibraryCall& call) {
  const bool max = call.operands.size() == 2;
  const auto dx = ToDesc(call.results[0]);
  const auto dy = ToDesc(call.operands[0]);
  const auto pd = PoolBackward(dx, dy, call.attrs, max);
  if (!pd.has_value()) return std::nullopt;
  PrimitivePlan pool{*pd, {{DNNL_ARG_DIFF_DST, dy}}};
  if (max) {
    if (!IndexFits(pd->workspace_desc(), call.operands[0])) return std::nullopt;
    pool.args.push_back({DNNL_ARG_WORKSPACE, pd->workspace_desc()});
  }
  pool.args.push_back({DNNL_ARG_DIFF_SRC, dx});
  return OneDnnPlan{std::move(pool)};
}

std::optional<OneDnnPlan> PlanMatmul(const LibraryCall& call) {
  const auto pd =
      Matmul(call.operands[0], call.operands[1], call.results[0], call.attrs);
  if (!pd.has_value()) return std::nullopt;
  return OneDnnPlan{{*pd,
                     {{DNNL_ARG_SRC, pd->src_desc()},
                      {DNNL_ARG_WEIGHTS, pd->weights_desc()},
                      {DNNL_ARG_DST, pd->dst_desc()}}}};
}

std::optional<OneDnnPlan> PlanCopy(const LibraryCall& call) {
  auto reorder = PlanReorder(ToDesc(call.operands[0]), ToDesc(call.results[0]));
  if (!reorder.has_value()) return std::nullopt;
  return OneDnnPlan{*std::move(reorder)};
}

using Planner = std::optional<OneDnnPlan> (*)(const LibraryCall&);

struct PlannerRow {
  ir::OpKind op;
  Planner plan;
};

constexpr PlannerRow kPlanners[] = {
    {ir::OpKind::kConv2d, PlanConv},
    {ir::OpKind::kConv2dGradInput, PlanConvGradInput},
    {ir::OpKind::kConv2dGradWeight, PlanConvGradWeight},
    {ir::OpKind::kMaxPoolGrad, PlanPoolGrad},
    {ir::OpKind::kAvgPool, PlanAvgPool},
    {ir::OpKind::kAvgPoolGrad, PlanPoolGrad},
    {ir::OpKind::kMatmul, PlanMatmul},
    {ir::OpKind::kCopy, PlanCopy},
};

}  // namespace

std::optional<OneDnnPlan> PlanOneDnn(const LibraryCall& call) {
  const auto row =
      std::find_if(std::begin(kPlanners), std::end(kPlanners),
                   [&](const PlannerRow& r) { return r.op == call.op; });
  if (row == std::end(kPlanners) || !DnnlTypes(call)) return std::nullopt;
  return row->plan(call);
}

std::string OneDnnVersion() {
  const dnnl_version_t* version = dnnl_version();
  return fmt::format("oneDNN {}.{}.{}", version->major, version->minor,
                     version->patch);
}

}  // namespace fusor::cpu
