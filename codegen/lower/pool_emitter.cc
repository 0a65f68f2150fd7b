#include "codegen/lower/pool_emitter.h"

#include <algorithm>

#include "ir/op.h"
#include "ir/support/error.h"
#include "passes/fusion/iteration_domain.h"

namespace fusor::codegen {
namespace {

using ir::DType;
using ir::ScalarOp;
using ir::Value;

// Returns whether the value is constant except along the channels.
bool IsSpread(const Value* value) {
  const ir::Node* node = value->producer();
  if (node == nullptr || node->HasTrait(ir::OpTrait::kPooling)) return false;
  if (node->op().fusion != ir::FusionKind::kElementwise) return true;
  return std::all_of(node->inputs().begin(), node->inputs().end(), IsSpread);
}

}  // namespace

std::array<int64_t, 4> StridesOf(const ir::TensorType& type) {
  if (type.rank() == 0) return {};
  if (type.rank() == 1) return {0, 1, 0, 0};
  FUSOR_ASSERT(type.rank() == 4 && type.layout.tiles.empty(),
               "pooling of {} by a kernel", ToString(type));
  std::array<int64_t, 4> strides{};
  for (const ir::PhysicalAxis& axis : PhysicalAxes(type)) {
    strides[axis.dim] = axis.stride;
  }
  return strides;
}

PoolEmitter::PoolEmitter(const ir::Graph& body, KernelBuilder& builder,
                         bool eager)
    : graph_(body), builder_(builder), eager_(eager) {
  builder.AddBuffers(body);
  for (const ir::Input& input : body.inputs()) {
    strides_.push_back(StridesOf(input.value->type()));
  }
  for (const ir::Output& output : body.outputs()) {
    strides_.push_back(StridesOf(output.value->type()));
  }
  for (const auto& node : body.nodes()) {
    if (node->HasTrait(ir::OpTrait::kPooling)) pooled_.insert(node->input(0));
  }
}

void PoolEmitter::BeginPhase(PoolAxes axes) {
  axes_ = std::move(axes);
  values_.clear();
  constants_.clear();
}

int PoolEmitter::Eval(const Value* value, const PoolPlace& place) {
  if (const auto it = results_.find(value); it != results_.end()) {
    return it->second;
  }
  const bool spread = IsSpread(value);
  const auto key = spread ? std::tuple(value, -1, int64_t{0}, int64_t{0})
                          : std::tuple(value, static_cast<int>(place.tap),
                                       place.offset[0], place.offset[1]);
  if (const auto it = values_.find(key); it != values_.end()) {
    return it->second;
  }
  const int reg = Make(value, place);
  builder_.NameValue(reg, *value);
  return values_[key] = reg;
}

int PoolEmitter::Make(const Value* value, const PoolPlace& place) {
  const ir::Node* node = value->producer();
  if (node == nullptr) {
    return builder_.Load(value->index(), IndexOf(value->index(), place));
  }
  const DType dtype = value->type().dtype;
  if (passes::IsSplat(*node)) {
    return Constant(dtype, node->attrs().Floats("value")[0]);
  }
  if (node->op().fusion == ir::FusionKind::kInjective) {  // a broadcast
    const Value* vector = node->input(0);
    Index index;
    if (vector->type().rank() == 1) index.terms.push_back({axes_.channel, 1});
    return builder_.Load(vector->index(), std::move(index));
  }
  Stmt stmt{.kind = StmtKind::kCompute,
            .op = ir::NodeScalar(*node),
            .round = eager_ || pooled_.contains(value)};
  for (size_t i = 0; i < node->num_inputs(); ++i) {
    stmt.src[i] = Eval(node->input(i), place);
  }
  return builder_.Define(std::move(stmt), dtype);
}

int PoolEmitter::Filter(const Value* filter, int64_t row, int64_t column) {
  const auto key = std::tuple(filter, -1, row, column);
  if (const auto it = values_.find(key); it != values_.end()) {
    return it->second;
  }
  const std::array<int64_t, 4>& strides = strides_[filter->index()];
  return values_[key] = builder_.Load(filter->index(),
                                      {row * strides[2] + column * strides[3],
                                       {{axes_.channel, strides[0]}}});
}

Index PoolEmitter::IndexOf(int buffer, const PoolPlace& place) const {
  const std::array<int64_t, 4>& strides = strides_[buffer];
  Index index;
  AddTerms(index, axes_.parts[0], strides[0]);
  for (size_t d = 0; d < 2; ++d) {
    const int64_t stride = strides[2 + d];
    index.offset +=
        stride * (axes_.first[d] * place.scale[d] + place.offset[d]);
    AddTerms(index, axes_.parts[1 + d], stride * place.scale[d]);
  }
  index.terms.push_back({axes_.channel, strides[1]});
  return index;
}

void PoolEmitter::StoreResult(size_t result, int value,
                              const PoolPlace& place) {
  const auto buffer = static_cast<int>(graph_.inputs().size() + result);
  builder_.Store(buffer, IndexOf(buffer, place), value);
}

int PoolEmitter::Constant(DType dtype, double value) {
  value = ir::RoundTo(dtype, value);
  const auto [it, added] = constants_.try_emplace(std::pair(dtype, value), -1);
  if (added) it->second = builder_.Constant(dtype, value);
  return it->second;
}

}  // namespace fusor::codegen
