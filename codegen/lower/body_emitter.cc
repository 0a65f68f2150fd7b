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
  if (!node.attrs().Has("dim")) {
    return {{DType::kI64, shape, {}}, map};
  }
  const int64_t dim = node.attrs().Int("dim");
  return {{DType::kI64, {shape[dim]}, {}}, {map[dim]}};
}

bool IsGraphInput(const Value* value) { return value->producer() == nullptr; }

}  // namespace

bool MustRound(ir::ScalarOp op, ir::DType dtype) {
  if (dtype != ir::DType::kU8 || ir::IsComparison(op)) return false;
  switch (op) {
    case ir::ScalarOp::kAbs:
    case ir::ScalarOp::kFloor:
    case ir::ScalarOp::kRelu:
    case ir::ScalarOp::kNot:
    case ir::ScalarOp::kIsFinite:
    case ir::ScalarOp::kDiv:
    case ir::ScalarOp::kMaximum:
    case ir::ScalarOp::kMinimum:
    case ir::ScalarOp::kAnd:
    case ir::ScalarOp::kOr:
    case ir::ScalarOp::kSelect:
      return false;
    default:
      return true;
  }
}

std::vector<Access> BodyEmitter::CollectAccesses(
    const ir::Graph& body, const passes::IterationDomain& domain) {
  std::vector<Access> accesses;
  for (const auto& node : body.nodes()) {
    const IndexMap& map = domain.maps.at(node->output());
    if (node->op().fusion == FusionKind::kSource && !passes::IsSplat(*node)) {
      accesses.push_back(SourceAccess(*node, map));
    }
    for (size_t i = 0; i < node->num_inputs(); ++i) {
      const Value* input = node->input(i);
      if (!IsGraphInput(input)) continue;
      if (node->op().fusion == FusionKind::kReduce) {
        IndexMap identity(input->type().rank());
        for (size_t d = 0; d < identity.size(); ++d) {
          if (input->type().shape[d] != 1) identity[d].dim = int(d);
        }
        accesses.push_back({input->type(), identity});
      } else {
        accesses.push_back({input->type(), *passes::OperandMap(*node, i, map)});
      }
    }
  }
  for (const ir::Output& output : body.outputs()) {
    if (domain.maps.contains(output.value)) {
      accesses.push_back({output.value->type(), domain.maps.at(output.value)});
    }
  }
  return accesses;
}

void BodyEmitter::BeginPhase(std::vector<int> grid) {
  FUSOR_ASSERT(levels_.empty(), "phase within a phase");
  grid_ = grid;
  levels_.emplace_back();
}

void BodyEmitter::EndPhase() {
  FUSOR_ASSERT(levels_.size() == 1, "loop left open");
  kernel_.phases.push_back({grid_, std::move(levels_[0].statements)});
  levels_.clear();
}

void BodyEmitter::OpenLoop(int kernel_axis) {
  levels_.emplace_back();
  levels_.back().axis = kernel_axis;
}

void BodyEmitter::CloseLoop() {
  Stmt loop{.kind = StmtKind::kLoop};
  loop.axis = levels_.back().axis;
  loop.body = std::move(levels_.back().statements);
  levels_.pop_back();
  levels_.back().statements.push_back(std::move(loop));
}

int BodyEmitter::NewRegister(DType dtype, bool vector) {
  kernel_.registers.push_back({dtype, vector});
  register_level_.push_back(levels_.size() - 1);
  return static_cast<int>(kernel_.registers.size()) - 1;
}

void BodyEmitter::Append(Stmt stmt) {
  levels_.back().statements.push_back(std::move(stmt));
}

int BodyEmitter::Emit(Stmt stmt, DType dtype, bool vector, size_t level) {
  const int reg = NewRegister(dtype, vector);
  register_level_[reg] = level;
  stmt.dst = reg;
  levels_[level].statements.push_back(std::move(stmt));
  return reg;
}

Index BodyEmitter::KernelIndex(const Index& nest_index) const {
  Index index{nest_index.offset, {}};
  for (const Index::Term& term : nest_index.terms) {
    for (const AxisPart& part : parts_[term.axis]) {
      index.terms.push_back({part.axis, term.coefficient * part.factor});
    }
  }
  std::sort(index.terms.begin(), index.terms.end(),
            [](const auto& a, const auto& b) { return a.axis < b.axis; });
  return index;
}

// Returns the level of the innermost loop that the index uses; 0: the phase.
size_t BodyEmitter::LevelOf(const Index& index) const {
  for (size_t level = levels_.size(); level-- > 1;) {
    for (const Index::Term& term : index.terms) {
      if (term.axis == levels_[level].axis) return level;
    }
  }
  return 0;
}

bool BodyEmitter::IsVector(const Index& index) const {
  return std::any_of(
      index.terms.begin(), index.terms.end(), [&](const Index::Term& term) {
        return kernel_.axes[term.axis].vector && term.coefficient != 0;
      });
}

void BodyEmitter::Define(const Value* value, int reg) {
  levels_.back().values[value] = reg;
  register_level_[reg] = levels_.size() - 1;
}

int BodyEmitter::Eval(const Value* value) {
  for (const Level& level : levels_) {
    const auto it = level.values.find(value);
    if (it != level.values.end()) return it->second;
  }
  FUSOR_ASSERT(value->producer() != nullptr, "{} has no map", value->name());
  const Node& node = *value->producer();
  const IndexMap& map = domain_.maps.at(value);
  if (const auto held = held_.find(value); held != held_.end()) {
    const int reg = Load(held->second, {value->type(), map});
    levels_[LevelOfRegister(reg)].values[value] = reg;
    return reg;
  }
  int reg = -1;
  switch (node.op().fusion) {
    case FusionKind::kElementwise:
      reg = EvalElementwise(node, map);
      break;
    case FusionKind::kInjective:
      reg = EvalOperand(node, 0, map);
      break;
    case FusionKind::kSource:
      reg = EvalSource(node, map);
      break;
    default:
      FUSOR_ASSERT(false, "{} is not known here", value->name());
  }
  levels_[LevelOfRegister(reg)].values[value] = reg;
  return reg;
}

int BodyEmitter::EvalReduced(const Node& reduce) {
  const Value* operand = reduce.input(0);
  if (!IsGraphInput(operand)) return Eval(operand);
  IndexMap identity(operand->type().rank());
  for (size_t d = 0; d < identity.size(); ++d) {
    if (operand->type().shape[d] != 1) identity[d].dim = static_cast<int>(d);
  }
  return Load(operand->index(), {operand->type(), identity});
}

int BodyEmitter::EvalOperand(const Node& node, size_t i, const IndexMap& map) {
  const Value* operand = node.input(i);
  if (!IsGraphInput(operand)) return Eval(operand);
  return Load(operand->index(),
              {operand->type(), *passes::OperandMap(node, i, map)});
}

int BodyEmitter::EvalSource(const Node& node, const IndexMap& map) {
  if (passes::IsSplat(node)) return Constant(node);
  const Index index = KernelIndex(nest_.Offset(SourceAccess(node, map)));
  Stmt stmt{.kind = StmtKind::kIndexValue};
  stmt.index = index;
  size_t level = LevelOf(index);
  if (node.num_inputs() == 2) {  // random(key, step)
    stmt.kind = StmtKind::kRandom;
    stmt.site = node.attrs().Int("site");
    stmt.rank = node.attrs().Int("rank");
    for (size_t i = 0; i < 2; ++i) {
      stmt.src[i] = EvalOperand(node, i, {});
      level = std::max(level, LevelOfRegister(stmt.src[i]));
    }
  }
  const DType dtype = node.output()->type().dtype;
  stmt.round = MustRound(stmt.op, dtype);
  return Emit(std::move(stmt), dtype, IsVector(index), level);
}

int BodyEmitter::Constant(const Node& node) {
  Stmt stmt{.kind = StmtKind::kConstant};
  const ir::DType dtype = node.output()->type().dtype;
  stmt.constant = ir::RoundTo(dtype, node.attrs().Floats("value")[0]);
  return Emit(std::move(stmt), dtype, false, 0);
}

int BodyEmitter::EvalElementwise(const Node& node, const IndexMap& map) {
  Stmt stmt{.kind = StmtKind::kCompute};
  stmt.op = ir::NodeScalar(node);
  size_t level = 0;
  bool vector = false;
  for (size_t i = 0; i < node.num_inputs(); ++i) {
    const int reg = EvalOperand(node, i, map);
    stmt.src[i] = reg;
    level = std::max(level, LevelOfRegister(reg));
    vector |= kernel_.registers[reg].vector;
  }
  const DType dtype = node.output()->type().dtype;
  stmt.round = eager_ || MustRound(stmt.op, dtype);
  return Emit(std::move(stmt), dtype, vector, level);
}

int BodyEmitter::Load(int buffer, const Access& access) {
  const Index index = KernelIndex(nest_.Offset(access));
  loads_.push_back({buffer, index, time_});
  for (const Level& level : levels_) {
    for (const auto& [touch, reg] : level.loaded) {
      if (touch.buffer == buffer && touch.index == index) return reg;
    }
  }
  const size_t level = LevelOf(index);
  Stmt stmt{.kind = StmtKind::kLoad};
  stmt.buffer = buffer;
  stmt.index = index;
  const int reg =
      Emit(std::move(stmt), access.type.dtype, IsVector(index), level);
  levels_[level].loaded.push_back({{buffer, index, time_}, reg});
  return reg;
}

int BodyEmitter::LoadScratch(int buffer, Index index, DType dtype) {
  Stmt stmt{.kind = StmtKind::kLoad};
  stmt.buffer = buffer;
  const bool vector = IsVector(index);
  const size_t level = LevelOf(index);
  stmt.index = std::move(index);
  return Emit(std::move(stmt), dtype, vector, level);
}

void BodyEmitter::Store(int buffer, const Access& access, int reg) {
  Stmt stmt{.kind = StmtKind::kStore};
  stmt.buffer = buffer;
  stmt.index = KernelIndex(nest_.Offset(access));
  stmt.src[0] = reg;
  stores_.push_back({buffer, stmt.index, time_});
  Append(std::move(stmt));
}

}  // namespace fusor::codegen
