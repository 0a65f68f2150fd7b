#include "codegen/lower/body_emitter.h"

#include <algorithm>

#include "ir/op.h"
#include "ir/support/error.h"

namespace fusor::codegen {

using ir::DType;
using ir::FusionKind;
using ir::IndexMap;
using ir::Node;
using ir::Value;

namespace {

// Returns the coordinate that an iota yields, or the linear index that random
// uses as its counter, as a row-major access.
Access SourceAccess(const Node& node, const IndexMap& map) {
  const ir::Shape& shape = node.output()->type().shape;
  if (node.kind() != ir::OpKind::kIota) {
    return {{DType::kI64, shape, {}}, map};
  }
  const int64_t dim = node.attrs().Int("dim");
  return {{DType::kI64, {shape[dim]}, {}}, {map[dim]}};
}

// Returns the index of a dimension as an access.
Access IndexAccess(const ir::DimMap& map) {
  return {{DType::kI64, {2}, {}}, {map}};
}

// Returns the dimensions in which an index can be outside of a tensor.
std::vector<size_t> BoundedDims(const Access& access, const ir::Shape& loops) {
  std::vector<size_t> dims;
  for (size_t d = 0; d < access.map.size(); ++d) {
    if (passes::CanBeOutside(access.map[d], access.type.shape[d], loops)) {
      dims.push_back(d);
    }
  }
  return dims;
}

// Returns the access at index 0 of these dimensions.
Access WithoutDims(Access access, const std::vector<size_t>& dims) {
  for (const size_t d : dims) access.map[d] = {};
  return access;
}

bool IsGraphInput(const Value* value) { return value->producer() == nullptr; }

bool IsConstant(const Value* value) {
  return !IsGraphInput(value) && passes::IsSplat(*value->producer());
}

// Returns whether a comparison must round its operands in every rounding mode.
// The gradient of a maximum looks for the elements that equal it. The maximum
// may be stored, and then no unrounded element equals it.
bool ComparesRoundedValues(const Node& node) {
  const DType dtype = node.input(0)->type().dtype;
  return ir::IsComparison(ir::NodeScalar(node)) &&
         (dtype == DType::kF16 || dtype == DType::kBF16) &&
         !IsConstant(node.input(0)) && !IsConstant(node.input(1));
}

}  // namespace

std::vector<Access> BodyEmitter::CollectAccesses(
    const ir::Graph& body, const passes::IterationDomain& domain) {
  std::vector<Access> accesses;
  for (const auto& node : body.nodes()) {
    const auto found = domain.maps.find(node->output());
    if (found == domain.maps.end()) continue;
    const IndexMap& map = found->second;
    if (node->op().fusion == FusionKind::kSource && !passes::IsSplat(*node)) {
      accesses.push_back(SourceAccess(*node, map));
    }
    const bool library = node->op().fusion == FusionKind::kLibrary;
    for (size_t i = 0; i < node->num_inputs(); ++i) {
      const Value* input = node->input(i);
      if (!IsGraphInput(input) || library) continue;
      if (node->kind() == ir::OpKind::kConcat &&
          i != passes::OperandInPart(*node, domain)) {
        continue;
      }
      if (node->op().fusion == FusionKind::kReduce) {
        accesses.push_back({input->type(), domain.Identity()});
      } else {
        Access access{input->type(), *passes::OperandMap(*node, i, map)};
        const std::vector<size_t> dims = BoundedDims(access, domain.extents);
        for (const size_t d : dims) {
          accesses.push_back(IndexAccess(access.map[d]));
        }
        accesses.push_back(WithoutDims(std::move(access), dims));
      }
    }
    if (node->kind() != ir::OpKind::kPad) continue;
    const Access access{node->input(0)->type(),
                        *passes::OperandMap(*node, 0, map)};
    for (const size_t d : BoundedDims(access, domain.extents)) {
      accesses.push_back(IndexAccess(access.map[d]));
    }
  }
  for (const ir::Output& output : body.outputs()) {
    if (domain.maps.contains(output.value)) {
      accesses.push_back({output.value->type(), domain.maps.at(output.value)});
    }
  }
  return accesses;
}

int BodyEmitter::Eval(const Value* value) {
  if (const auto it = values_.find(value);
      it != values_.end() && builder_.IsAvailable(it->second)) {
    return it->second;
  }
  FUSOR_ASSERT(value->producer() != nullptr, "{} has no map", value->name());
  Define(value, EvalNode(*value->producer()));
  return values_[value];
}

void BodyEmitter::Define(const Value* value, int reg) {
  builder_.NameValue(reg, *value);
  values_[value] = reg;
}

int BodyEmitter::EvalNode(const Node& node) {
  const Value* value = node.output();
  const IndexMap& map = domain_.maps.at(value);
  if (const auto held = held_.find(value); held != held_.end()) {
    return Load(held->second, {value->type(), map});
  }
  switch (node.op().fusion) {
    case FusionKind::kElementwise:
      return EvalElementwise(node, map);
    case FusionKind::kInjective:
      if (node.kind() == ir::OpKind::kPad) return EvalPad(node, map);
      if (node.kind() == ir::OpKind::kConcat) {
        return EvalOperand(node, passes::OperandInPart(node, domain_), map);
      }
      return EvalOperand(node, 0, map);
    case FusionKind::kIndexed:
      return EvalGather(node, map);
    case FusionKind::kSource:
      return EvalSource(node, map);
    default:
      FUSOR_ASSERT(false, "{} is not known here", value->name());
  }
}

int BodyEmitter::EvalAt(const Value* value, const IndexMap& map) {
  return IsGraphInput(value) ? Load(value->index(), {value->type(), map})
                             : Eval(value);
}

int BodyEmitter::EvalReduced(const Node& reduce) {
  const Value* operand = reduce.input(0);
  if (!IsGraphInput(operand)) return Eval(operand);
  return Load(operand->index(), {operand->type(), domain_.Identity()});
}

int BodyEmitter::EvalOperand(const Node& node, size_t i, const IndexMap& map) {
  const Value* operand = node.input(i);
  if (!IsGraphInput(operand)) return Eval(operand);
  return Load(operand->index(),
              {operand->type(), *passes::OperandMap(node, i, map)});
}

int BodyEmitter::EvalSource(const Node& node, const IndexMap& map) {
  const DType dtype = node.output()->type().dtype;
  if (passes::IsSplat(node)) {
    return builder_.Constant(dtype, node.attrs().Floats("value")[0]);
  }
  Stmt stmt{.kind = StmtKind::kIndexValue};
  stmt.index = nest_.Offset(SourceAccess(node, map), parts_);
  if (node.num_inputs() == 2) {  // random(key, step)
    stmt.kind = StmtKind::kRandom;
    stmt.site = node.attrs().Int("site");
    stmt.rank = node.attrs().Int("rank");
    for (size_t i = 0; i < 2; ++i) stmt.src[i] = EvalOperand(node, i, {});
  }
  return builder_.Define(std::move(stmt), dtype);
}

// Operand 0 is an input of the body: fusion never computes it.
int BodyEmitter::EvalGather(const Node& node, const IndexMap& map) {
  const Value* x = node.input(0);
  std::vector<IndexedTerm> indexed;
  const std::vector<int64_t>& dims = node.attrs().Ints("dims");
  size_t operand = 1;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] >= 0) continue;
    for (const ir::PhysicalAxis& axis : PhysicalAxes(x->type())) {
      if (axis.dim != static_cast<int>(d)) continue;
      FUSOR_ASSERT(axis.extent == x->type().shape[d], "{}: tiles of {}",
                   x->name(), ToString(x->type()));
      indexed.push_back(
          {EvalOperand(node, operand, map), axis.stride, axis.extent});
    }
    ++operand;
  }
  Index index =
      nest_.Offset({x->type(), *passes::OperandMap(node, 0, map)}, parts_);
  loads_.push_back({x->index(), index, time_, /*indexed=*/true});
  return builder_.Gather(x->index(), std::move(index), std::move(indexed));
}

int BodyEmitter::EvalElementwise(const Node& node, const IndexMap& map) {
  Stmt stmt{
      .kind = StmtKind::kCompute, .op = ir::NodeScalar(node), .round = eager_};
  const bool rounds = ComparesRoundedValues(node) && !eager_;
  for (size_t i = 0; i < node.num_inputs(); ++i) {
    stmt.src[i] = EvalOperand(node, i, map);
    const Value* operand = node.input(i);
    if (!rounds || IsGraphInput(operand)) continue;
    stmt.src[i] = builder_.Compute(ir::ScalarOp::kIdentity,
                                   operand->type().dtype, {stmt.src[i]}, true);
  }
  return builder_.Define(std::move(stmt), node.output()->type().dtype);
}

// Selects the operand where its index is inside in all dimensions.
int BodyEmitter::EvalPad(const Node& node, const IndexMap& map) {
  const ir::TensorType& type = node.input(0)->type();
  const Access access{type, *passes::OperandMap(node, 0, map)};
  int inside = -1;
  for (const size_t d : BoundedDims(access, domain_.extents)) {
    const ir::DimMap& dim = access.map[d];
    const int index = EvalIndex(dim);
    for (const bool low : {true, false}) {
      const int64_t bound = low ? 0 : type.shape[d];
      const int64_t last =
          dim.offset + dim.scale * (domain_.extents[dim.dim] - 1);
      if (low ? dim.offset >= 0 : last < bound) continue;
      const int is_inside = builder_.Compute(
          low ? ir::ScalarOp::kGe : ir::ScalarOp::kLt, DType::kBool,
          {index, builder_.Constant(DType::kI64, static_cast<double>(bound))});
      inside = inside < 0 ? is_inside
                          : builder_.Compute(ir::ScalarOp::kAnd, DType::kBool,
                                             {inside, is_inside});
    }
  }
  const int operand = EvalOperand(node, 0, map);
  if (inside < 0) return operand;
  return builder_.Compute(
      ir::ScalarOp::kSelect, type.dtype,
      {inside, operand,
       builder_.Constant(type.dtype, node.attrs().Float("value"))});
}

int BodyEmitter::EvalIndex(const ir::DimMap& map) {
  Stmt stmt{.kind = StmtKind::kIndexValue};
  stmt.index = nest_.Offset(IndexAccess(map), parts_);
  return builder_.Define(std::move(stmt), DType::kI64);
}

// Loads an element of a padded operand. Where the index is outside of the
// operand, EvalPad does not select the loaded element.
int BodyEmitter::LoadInside(int buffer, const Access& access) {
  const std::vector<size_t> dims = BoundedDims(access, domain_.extents);
  std::vector<IndexedTerm> indexed;
  for (const size_t d : dims) {
    int64_t stride = 0;
    for (const ir::PhysicalAxis& axis : PhysicalAxes(access.type)) {
      if (axis.dim == static_cast<int>(d)) stride = axis.stride;
    }
    indexed.push_back({EvalIndex(access.map[d]), stride, access.type.shape[d]});
  }
  Index index = nest_.Offset(WithoutDims(access, dims), parts_);
  loads_.push_back({buffer, index, time_, /*indexed=*/true});
  return builder_.Gather(buffer, std::move(index), std::move(indexed));
}

int BodyEmitter::Load(int buffer, const Access& access) {
  if (!BoundedDims(access, domain_.extents).empty()) {
    return LoadInside(buffer, access);
  }
  Index index = nest_.Offset(access, parts_);
  const Touch touch{buffer, index, time_};
  loads_.push_back(touch);
  for (const auto& [earlier, reg] : loaded_) {
    if (earlier.buffer == buffer && earlier.index == index &&
        builder_.IsAvailable(reg)) {
      return reg;
    }
  }
  const int reg = builder_.Load(buffer, std::move(index));
  if (static_cast<size_t>(buffer) < body_.inputs().size()) {
    builder_.NameValue(reg, *body_.inputs()[buffer].value);
  }
  loaded_.emplace_back(touch, reg);
  return reg;
}

void BodyEmitter::StoreResult(size_t output) {
  const Value* value = body_.outputs()[output].value;
  const int buffer = static_cast<int>(body_.inputs().size() + output);
  Index index = nest_.Offset({value->type(), domain_.maps.at(value)}, parts_);
  stores_.push_back({buffer, index, time_});
  builder_.Store(buffer, std::move(index), Eval(value));
}

}  // namespace fusor::codegen
