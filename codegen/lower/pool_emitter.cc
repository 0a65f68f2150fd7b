#include "codegen/lower/pool_emitter.h"

#include <algorithm>

#include "codegen/lower/body_emitter.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "passes/fusion/iteration_domain.h"

namespace fusor::codegen {
namespace {

using ir::DType;
using ir::ScalarOp;
using ir::Value;

// Returns the strides in elements, by dimension. Rank 1 is along the channels.
// REQUIRES: no tiles.
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

// Returns whether the value is constant except along the channels.
bool IsSpread(const Value* value) {
  const ir::Node* node = value->producer();
  if (node == nullptr || IsPooling(*node)) return false;
  if (node->op().fusion != ir::FusionKind::kElementwise) return true;
  return std::all_of(node->inputs().begin(), node->inputs().end(), IsSpread);
}

}  // namespace

PoolEmitter::PoolEmitter(const ir::Graph& body, Kernel& kernel, bool eager)
    : graph_(body), kernel_(kernel), eager_(eager) {
  for (const ir::Input& input : body.inputs()) AddBuffer(*input.value, false);
  for (const ir::Output& output : body.outputs()) {
    AddBuffer(*output.value, true);
  }
  for (const auto& node : body.nodes()) {
    if (IsPooling(*node)) pooled_.insert(node->input(0));
  }
}

void PoolEmitter::AddBuffer(const Value& value, bool written) {
  const ir::TensorType& type = value.type();
  kernel_.buffers.push_back(
      {value.name(), type.dtype, type.num_elements(), written});
  strides_.push_back(StridesOf(type));
}

void PoolEmitter::BeginPhase(PoolAxes axes, std::vector<Stmt>* outer,
                             std::vector<Stmt>* body) {
  axes_ = std::move(axes);
  outer_ = outer;
  body_ = body;
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
  std::vector<Stmt>* const body = std::exchange(body_, spread ? outer_ : body_);
  const int reg = Make(value, place);
  body_ = body;
  return values_[key] = reg;
}

int PoolEmitter::Make(const Value* value, const PoolPlace& place) {
  const ir::Node* node = value->producer();
  if (node == nullptr) {
    return Load(value->index(), IndexOf(value->index(), place));
  }
  const DType dtype = value->type().dtype;
  if (passes::IsSplat(*node)) {
    return Constant(dtype,
                    ir::RoundTo(dtype, node->attrs().Floats("value")[0]));
  }
  if (node->op().fusion == ir::FusionKind::kInjective) {  // a broadcast
    const Value* vector = node->input(0);
    Index index;
    if (vector->type().rank() == 1) index.terms.push_back({axes_.channel, 1});
    return Load(vector->index(), std::move(index));
  }
  std::array<int, 3> src{-1, -1, -1};
  for (size_t i = 0; i < node->num_inputs(); ++i) {
    src[i] = Eval(node->input(i), place);
  }
  return Compute(ir::NodeScalar(*node), dtype, src[0], src[1], src[2],
                 eager_ || pooled_.contains(value));
}

int PoolEmitter::Emit(Stmt stmt, DType dtype, bool vector) {
  kernel_.registers.push_back({dtype, vector});
  const int result = stmt.dst = static_cast<int>(kernel_.registers.size()) - 1;
  body_->push_back(std::move(stmt));
  return result;
}

Index PoolEmitter::IndexOf(int buffer, const PoolPlace& place) const {
  const std::array<int64_t, 4>& strides = strides_[buffer];
  Index index;
  const auto add = [&](size_t d, int64_t coefficient) {
    for (const AxisPart& part : axes_.parts[d]) {
      index.terms.push_back({part.axis, coefficient * part.factor});
    }
  };
  add(0, strides[0]);
  for (size_t d = 0; d < 2; ++d) {
    const int64_t stride = strides[2 + d];
    index.offset +=
        stride * (axes_.first[d] * place.scale[d] + place.offset[d]);
    add(1 + d, stride * place.scale[d]);
  }
  index.terms.push_back({axes_.channel, strides[1]});
  return index;
}

int PoolEmitter::Load(int buffer, Index index) {
  Stmt load{.kind = StmtKind::kLoad};
  load.buffer = buffer;
  const bool vector = !index.terms.empty();
  load.index = std::move(index);
  return Emit(std::move(load), kernel_.buffers[buffer].dtype, vector);
}

void PoolEmitter::StoreResult(size_t result, int value,
                              const PoolPlace& place) {
  Stmt store{.kind = StmtKind::kStore};
  store.buffer = static_cast<int>(graph_.inputs().size() + result);
  store.index = IndexOf(store.buffer, place);
  store.src[0] = value;
  body_->push_back(std::move(store));
}

int PoolEmitter::Constant(DType dtype, double value) {
  const auto [it, added] = constants_.try_emplace(std::pair(dtype, value), -1);
  if (!added) return it->second;
  Stmt constant{.kind = StmtKind::kConstant};
  constant.constant = value;
  std::vector<Stmt>* const body = std::exchange(body_, outer_);
  it->second = Emit(std::move(constant), dtype, false);
  body_ = body;
  return it->second;
}

int PoolEmitter::Compute(ScalarOp op, DType dtype, int a, int b, int c,
                         bool round) {
  Stmt stmt{.kind = StmtKind::kCompute};
  stmt.op = op;
  stmt.src = {a, b, c};
  stmt.round = round || MustRound(op, dtype);
  const bool vector = std::any_of(
      stmt.src.begin(), stmt.src.end(),
      [&](int reg) { return reg >= 0 && kernel_.registers[reg].vector; });
  return Emit(std::move(stmt), dtype, vector);
}

int PoolEmitter::BeginSum(DType dtype) {
  Stmt init{.kind = StmtKind::kInit};
  init.op = ScalarOp::kAdd;
  return Emit(std::move(init), dtype, true);
}

void PoolEmitter::Add(int sum, int value) {
  Stmt add{.kind = StmtKind::kAccumulate};
  add.op = ScalarOp::kAdd;
  add.dst = sum;
  add.src[0] = value;
  body_->push_back(std::move(add));
}

}  // namespace fusor::codegen
