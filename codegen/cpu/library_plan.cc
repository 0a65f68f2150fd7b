#include "codegen/cpu/library_plan.h"

#include <algorithm>

#include "codegen/cpu/onednn_layout.h"
#include "codegen/cpu/onednn_primitives.h"
#include "ir/support/error.h"

namespace fusor::cpu {
namespace {

using codegen::LibraryCall;

// Returns whether fusor's own pooling knows a tensor's dtype and layout.
bool CanPool(const ir::TensorType& x) {
  const auto is_channel = [](const ir::Layout::Tile& tile) {
    return tile.dim == 1;
  };
  return HasOwnCalls(x.dtype) && x.layout.tiles.size() <= 1 &&
         std::all_of(x.layout.tiles.begin(), x.layout.tiles.end(), is_channel);
}

bool CanMaxPool(const LibraryCall& call) {
  if (call.op != ir::OpKind::kMaxPool || call.results.size() != 2) return false;
  const ir::TensorType& x = call.operands[0];
  return CanPool(x) && call.results[0].layout == x.layout &&
         call.results[1].layout == x.layout;
}

std::optional<MaxPoolGradPlan> PlanMaxPoolGrad(const LibraryCall& call) {
  if (call.op != ir::OpKind::kMaxPoolGrad || call.operands.size() != 2) {
    return std::nullopt;
  }
  const ir::TensorType& dx = call.results[0];
  const bool contiguous =
      !dx.layout.tiles.empty() || dx.layout == ChannelsLast();
  if (!CanPool(dx) || !contiguous || call.operands[0].layout != dx.layout ||
      call.operands[1].layout != dx.layout) {
    return std::nullopt;
  }
  const int64_t channels =
      dx.layout.tiles.empty() ? dx.shape[1] : dx.layout.tiles[0].size;
  const VectorIsa isa = WidestIsa();
  const bool wide = isa == VectorIsa::kAvx512 && channels % 16 == 0;
  if (channels % 8 != 0) return std::nullopt;
  return MaxPoolGradPlan{isa, wide ? 16 : 8};
}

LibraryPlan PlanMaxPool() {
  const VectorIsa isa = WidestIsa();
  return {"fusor_max_pool:" + std::string(IsaName(isa)), 0, MaxPoolPlan{isa}};
}

}  // namespace

LibraryPlan PlanLibraryCall(const LibraryCall& call, bool amx) {
  const bool convolution = call.HasTrait(ir::OpTrait::kConvolution);
  if (convolution || call.HasTrait(ir::OpTrait::kPooling)) {
    std::vector<ir::TensorType> types = call.operands;
    types.insert(types.end(), call.results.begin(), call.results.end());
    CheckImageSizes(call.op_name(), types);
  }
  if (const auto plan = PlanWinograd(call); plan.has_value()) {
    return {kWinogradImplementation, WorkspaceBytes(*plan), *plan};
  }
  if (call.body != nullptr) return {"reference"};
  const bool named = call.implementation.ends_with(kAmxImplementation);
  if (const auto plan = PlanWideWinograd(call); plan.has_value()) {
    return {plan->implementation(), plan->workspace_bytes(), *plan};
  }
  if (const auto plan = PlanIm2col(call, amx || named); plan.has_value()) {
    return {plan->implementation(), plan->workspace_bytes(), *plan};
  }
  if (const auto plan = PlanAmxConv(call); plan.has_value()) {
    return {plan->implementation(), plan->workspace_bytes(), *plan};
  }
  if (const auto plan = PlanAmxMatmul(call);
      plan.has_value() &&
      (convolution || call.implementation == plan->implementation() ||
       (amx && plan->is_fast()))) {
    return {plan->implementation(), plan->workspace_bytes(), *plan};
  }
  if (const auto plan = PlanSgemm(call);
      plan.has_value() && (call.implementation == kSgemmImplementation ||
                           (amx && plan->is_fast()))) {
    return {plan->implementation(), plan->workspace_bytes(), *plan};
  }
  if (const auto plan = PlanGrouped(call); plan.has_value()) {
    return {plan->implementation(), plan->workspace_bytes(), *plan};
  }
  if (const auto plan = PlanPlaneConv(call); plan.has_value()) {
    return {plan->implementation(), plan->workspace_bytes(), *plan};
  }
  if (CanMaxPool(call)) return PlanMaxPool();
  if (const auto plan = PlanMaxPoolGrad(call); plan.has_value()) {
    return {"fusor_max_pool_grad:" + std::string(IsaName(plan->isa)), 0, *plan};
  }
  if (const auto plan = PlanOneDnn(call); plan.has_value()) {
    return {plan->implementation(), plan->workspace_bytes(), *plan};
  }
  FUSOR_CHECK(!convolution || call.attrs.String("algorithm") != "winograd",
              kGraph, "{}: there is no Winograd implementation for {}",
              call.op_name(), ToString(call.operands[0]));
  return {"reference"};
}

}  // namespace fusor::cpu
