#include "codegen/kernel/kernel_builder.h"

#include <algorithm>

#include "ir/support/error.h"

namespace fusor::codegen {
namespace {

using ir::DType;
using ir::ScalarOp;

// Returns whether a statement must round its result in every rounding mode:
// i32 arithmetic may leave the range of u8, and u8 values must wrap around.
bool MustRound(ScalarOp op, DType dtype) {
  if (dtype != DType::kU8 || ir::IsComparison(op)) return false;
  switch (op) {
    case ScalarOp::kAbs:
    case ScalarOp::kFloor:
    case ScalarOp::kRelu:
    case ScalarOp::kNot:
    case ScalarOp::kIsFinite:
    case ScalarOp::kDiv:
    case ScalarOp::kFloorDiv:
    case ScalarOp::kRemainder:
    case ScalarOp::kBitwiseAnd:
    case ScalarOp::kBitwiseOr:
    case ScalarOp::kBitwiseXor:
    case ScalarOp::kMaximum:
    case ScalarOp::kMinimum:
    case ScalarOp::kAnd:
    case ScalarOp::kOr:
    case ScalarOp::kSelect:
      return false;
    default:
      return true;
  }
}

// Renumbering of the statements of an appended kernel.
struct Renumbering {
  int axes;
  int registers;
  std::span<const KernelBuilder::BufferRange> buffers;
};

void Renumber(std::vector<Stmt>& body, const Renumbering& to) {
  const auto shift = [](int& number, int by) {
    if (number >= 0) number += by;
  };
  for (Stmt& stmt : body) {
    shift(stmt.dst, to.registers);
    for (int& src : stmt.src) shift(src, to.registers);
    for (int& src : stmt.tile.sources) shift(src, to.registers);
    for (IndexedTerm& term : stmt.indexed) shift(term.reg, to.registers);
    shift(stmt.axis, to.axes);
    for (Index::Term& term : stmt.index.terms) shift(term.axis, to.axes);
    for (Bound& bound : stmt.bounds) {
      for (Index::Term& term : bound.index.terms) shift(term.axis, to.axes);
    }
    if (stmt.buffer >= 0) {
      const auto [buffer, offset] = to.buffers[stmt.buffer];
      stmt.buffer = buffer;
      stmt.index.offset += offset;
    }
    for (Dot::Factor& factor : stmt.dot.factors) {
      if (factor.buffer < 0) continue;
      const auto [buffer, offset] = to.buffers[factor.buffer];
      factor.buffer = buffer;
      factor.offset += offset;
    }
    Renumber(stmt.body, to);
  }
}

}  // namespace

int ThreadWidth(const std::vector<KernelBuffer>& buffers) {
  const bool narrow = std::any_of(
      buffers.begin(), buffers.end(), [](const KernelBuffer& buffer) {
        return buffer.elements > 1 && ir::DTypeSize(buffer.dtype) <= 2;
      });
  return narrow ? 8 : 4;
}

int64_t LanesFor(int64_t extent, int64_t least, int64_t most) {
  int64_t lanes = least;
  while (lanes < extent && lanes < most) lanes *= 2;
  return lanes;
}

int64_t LargestDivisor(int64_t n, int64_t limit) {
  for (int64_t d = std::min(n, limit); d > 1; --d) {
    if (n % d == 0) return d;
  }
  return 1;
}

size_t RowAxis(std::span<const int64_t> extents, size_t preferred,
               int64_t limit) {
  size_t best = preferred;
  int64_t most = LargestDivisor(extents[preferred], limit);
  if (most > 1 && 4 * most >= limit) return preferred;
  for (size_t i = extents.size(); i-- > 0;) {
    const int64_t rows = LargestDivisor(extents[i], limit);
    if (rows > most) {
      best = i;
      most = rows;
    }
  }
  return best;
}

DType AccumulatorDType(DType dtype) {
  if (dtype == DType::kF16 || dtype == DType::kBF16) return DType::kF32;
  return dtype == DType::kU8 ? DType::kI32 : dtype;
}

void AddTerms(Index& index, std::span<const AxisPart> parts, int64_t stride) {
  for (const AxisPart& part : parts) {
    if (part.axis < 0) {
      index.offset += stride * part.factor;
    } else {
      index.terms.push_back({part.axis, stride * part.factor});
    }
  }
}

KernelBuilder::KernelBuilder(std::string name, const ir::Target& target,
                             bool contract)
    : simt_(target.simt) {
  kernel_.name = std::move(name);
  kernel_.lanes = static_cast<int>(target.vector_bytes / 4);
  kernel_.contract = contract;
}

KernelBuilder::KernelBuilder(Kernel kernel)
    : kernel_(std::move(kernel)), definitions_(kernel_.registers.size()) {
  kernel_.axes.clear();
  kernel_.phases.clear();
}

int KernelBuilder::AddBuffer(std::string name, DType dtype, int64_t elements,
                             BufferUse use) {
  const bool local = use == BufferUse::kLocal;
  kernel_.buffers.push_back({.name = std::move(name),
                             .dtype = dtype,
                             .elements = elements,
                             .written = use != BufferUse::kRead,
                             .scratch = use == BufferUse::kScratch || local,
                             .local = local});
  return static_cast<int>(kernel_.buffers.size()) - 1;
}

int KernelBuilder::AddBuffer(const ir::Value& value, BufferUse use) {
  return AddBuffer(value.name(), value.type().dtype,
                   value.type().num_elements(), use);
}

void KernelBuilder::AddBuffers(const ir::Graph& body) {
  for (const ir::Input& input : body.inputs()) {
    AddBuffer(*input.value, BufferUse::kRead);
  }
  for (const ir::Output& output : body.outputs()) {
    AddBuffer(*output.value, BufferUse::kWritten);
  }
}

int KernelBuilder::AddAxis(std::string name, int64_t extent, AxisKind kind) {
  kernel_.axes.push_back({std::move(name), extent, kind == AxisKind::kVector,
                          kind == AxisKind::kBlock});
  return static_cast<int>(kernel_.axes.size()) - 1;
}

std::vector<AxisPart> KernelBuilder::AddGridAxis(std::vector<int>& grid,
                                                 std::string name,
                                                 int64_t extent, int64_t rows,
                                                 AxisKind kind,
                                                 std::string row_name) {
  grid.push_back(AddAxis(std::move(name), extent / rows, kind));
  std::vector<AxisPart> parts{{grid.back(), rows}};
  if (rows > 1) {
    grid.push_back(AddAxis(std::move(row_name), rows, AxisKind::kBlock));
    parts.push_back({grid.back(), 1});
  }
  return parts;
}

void KernelBuilder::SetLanes(int64_t lanes, int64_t width) {
  kernel_.lanes = static_cast<int>(lanes);
  kernel_.width = static_cast<int>(width);
}

void KernelBuilder::SizeBlock(int64_t extent) {
  if (!simt_) return;
  const int width = ThreadWidth(kernel_.buffers);
  SetLanes(LanesFor(extent, width, width * kBlockThreads), width);
}

int64_t KernelBuilder::MaxRows() const {
  return simt_ ? kBlockThreads * kernel_.width / kernel_.lanes : 1;
}

KernelBuilder::Scope KernelBuilder::Open(Stmt outer) {
  levels_.push_back({num_levels_++, std::move(outer)});
  return Scope(this);
}

KernelBuilder::Scope KernelBuilder::BeginPhase(std::vector<int> grid) {
  FUSOR_ASSERT(levels_.empty(), "kernel {}: a phase within a phase",
               kernel_.name);
  grid_ = std::move(grid);
  return Open({.kind = StmtKind::kLoop});
}

KernelBuilder::Scope KernelBuilder::BeginLoop(int axis) {
  FUSOR_ASSERT(!levels_.empty(), "kernel {}: a loop outside a phase",
               kernel_.name);
  return Open({.kind = StmtKind::kLoop, .axis = axis});
}

KernelBuilder::Scope KernelBuilder::BeginGuard(std::vector<Bound> bounds) {
  if (bounds.empty()) return Scope(nullptr);
  return Open({.kind = StmtKind::kGuard, .bounds = std::move(bounds)});
}

int KernelBuilder::Guarded(std::vector<Bound> bounds,
                           const std::function<int()>& value) {
  if (bounds.empty()) return value();
  bool vector = false;
  for (const Bound& bound : bounds) vector |= NamesLanes(bound.index);
  const auto guard = BeginGuard(std::move(bounds));
  const int inside = value();
  vector |= kernel_.registers[inside].vector;
  const int reg =
      NewRegister(kernel_.registers[inside].dtype, vector, levels_.size() - 2);
  Stmt& stmt = levels_.back().outer;
  stmt.dst = reg;
  stmt.src[0] = inside;
  return reg;
}

bool KernelBuilder::NamesLanes(const Index& index) const {
  return std::ranges::any_of(index.terms, [&](const Index::Term& term) {
    return kernel_.axes[term.axis].vector && term.coefficient != 0;
  });
}

void KernelBuilder::EndScope() {
  Level level = std::move(levels_.back());
  levels_.pop_back();
  if (levels_.empty()) {
    kernel_.phases.push_back({std::move(grid_), std::move(level.statements)});
    return;
  }
  level.outer.body = std::move(level.statements);
  levels_.back().statements.push_back(std::move(level.outer));
}

int KernelBuilder::NewRegister(DType dtype, bool vector, size_t depth,
                               ScalarOp reduction) {
  kernel_.registers.push_back({dtype, vector});
  definitions_.push_back({depth, levels_[depth].number, reduction});
  return static_cast<int>(kernel_.registers.size()) - 1;
}

void KernelBuilder::NameValue(int reg, const ir::Value& value) {
  std::string& name = kernel_.registers[reg].value;
  if (name.empty() && !IsOp(value.producer(), ir::OpKind::kConstant)) {
    name = value.name();
  }
}

bool KernelBuilder::IsAvailable(int reg) const {
  const Definition& definition = definitions_[reg];
  return definition.depth < levels_.size() &&
         levels_[definition.depth].number == definition.level;
}

int KernelBuilder::Constant(DType dtype, double value) {
  return Define(
      {.kind = StmtKind::kConstant, .constant = ir::RoundTo(dtype, value)},
      dtype);
}

int KernelBuilder::Load(int buffer, Index index) {
  return Define(
      {.kind = StmtKind::kLoad, .buffer = buffer, .index = std::move(index)},
      kernel_.buffers[buffer].dtype);
}

int KernelBuilder::Gather(int buffer, Index index,
                          std::vector<IndexedTerm> indexed) {
  return Define({.kind = StmtKind::kGather,
                 .buffer = buffer,
                 .index = std::move(index),
                 .indexed = std::move(indexed)},
                kernel_.buffers[buffer].dtype);
}

int KernelBuilder::Compute(ScalarOp op, DType dtype,
                           std::initializer_list<int> operands, bool round) {
  Stmt stmt{.kind = StmtKind::kCompute, .op = op, .round = round};
  std::copy(operands.begin(), operands.end(), stmt.src.begin());
  return Define(std::move(stmt), dtype);
}

int KernelBuilder::Define(Stmt stmt, DType dtype) {
  FUSOR_ASSERT(!levels_.empty(), "kernel {}: a statement outside a phase",
               kernel_.name);
  size_t depth = 0;
  bool vector = NamesLanes(stmt.index);
  for (const Index::Term& term : stmt.index.terms) {
    depth = DepthOf({&term.axis, 1}, depth);
  }
  const auto use = [&](int src) {
    if (src < 0) return;
    FUSOR_ASSERT(IsAvailable(src), "kernel {}: r{} was set in an ended loop",
                 kernel_.name, src);
    vector |= kernel_.registers[src].vector;
    depth = DepthOf(kernel_.registers[src].tile,
                    std::max(depth, definitions_[src].depth));
  };
  for (const int src : stmt.src) use(src);
  for (const IndexedTerm& term : stmt.indexed) use(term.reg);
  const bool arithmetic = stmt.kind != StmtKind::kConstant &&
                          stmt.kind != StmtKind::kLoad &&
                          stmt.kind != StmtKind::kGather;
  stmt.round |= arithmetic && MustRound(stmt.op, dtype);
  const int reg = stmt.dst = NewRegister(dtype, vector, depth);
  levels_[depth].statements.push_back(std::move(stmt));
  return reg;
}

size_t KernelBuilder::DepthOf(std::span<const int> axes, size_t depth) const {
  for (size_t d = depth + 1; d < levels_.size(); ++d) {
    const Stmt& outer = levels_[d].outer;
    const bool needed = std::ranges::any_of(axes, [&](int axis) {
      return outer.axis == axis ||
             std::ranges::any_of(outer.bounds, [&](const Bound& bound) {
               return Names(bound.index, axis);
             });
    });
    if (needed) depth = d;
  }
  return depth;
}

int KernelBuilder::Tile(DType dtype, std::vector<int> axes, bool vector) {
  const int reg = NewRegister(dtype, vector, levels_.size() - 1);
  kernel_.registers[reg].tile = std::move(axes);
  return reg;
}

void KernelBuilder::Assign(int dst, int value) {
  Append({.kind = StmtKind::kCompute, .dst = dst, .src = {value, -1, -1}});
}

void KernelBuilder::ClearTile(int tile) {
  std::vector<Scope> loops;
  for (const int axis : kernel_.registers[tile].tile) {
    loops.push_back(BeginLoop(axis));
  }
  Append({.kind = StmtKind::kInit, .dst = tile, .op = ScalarOp::kAdd});
  while (!loops.empty()) loops.pop_back();
}

KernelBuilder::Scope KernelBuilder::BeginContract(int axis, int acc, int a,
                                                  int b) {
  return Open({.kind = StmtKind::kContract,
               .dst = acc,
               .src = {a, b, -1},
               .axis = axis});
}

int KernelBuilder::Matrix(int64_t rows, int64_t columns) {
  const int reg = Accumulator(ScalarOp::kAdd, DType::kF32, false);
  kernel_.registers[reg].rows = rows;
  kernel_.registers[reg].columns = columns;
  return reg;
}

void KernelBuilder::AddDot(int matrix, Dot dot) {
  levels_.back().statements.push_back(
      {.kind = StmtKind::kDot, .dst = matrix, .dot = std::move(dot)});
}

void KernelBuilder::StoreMatrix(int buffer, int64_t stride, int matrix) {
  Append({.kind = StmtKind::kStoreMatrix,
          .src = {matrix, -1, -1},
          .buffer = buffer,
          .stride = stride});
}

int KernelBuilder::Accumulator(ScalarOp op, DType dtype, bool vector) {
  const int reg = NewRegister(dtype, vector, levels_.size() - 1, op);
  levels_.back().statements.push_back(
      {.kind = StmtKind::kInit, .dst = reg, .op = op});
  return reg;
}

void KernelBuilder::Accumulate(int accumulator, int value) {
  Append({.kind = StmtKind::kAccumulate,
          .dst = accumulator,
          .op = definitions_[accumulator].reduction,
          .src = {value, -1, -1}});
}

int KernelBuilder::Reduce(StmtKind kind, int accumulator, bool vector) {
  const ScalarOp op = definitions_[accumulator].reduction;
  const int reg = NewRegister(kernel_.registers[accumulator].dtype, vector,
                              levels_.size() - 1, op);
  levels_.back().statements.push_back(
      {.kind = kind, .dst = reg, .op = op, .src = {accumulator, -1, -1}});
  return reg;
}

int KernelBuilder::ReduceLanes(int accumulator) {
  return Reduce(StmtKind::kReduceLanes, accumulator, false);
}

int KernelBuilder::ReduceBlock(int accumulator) {
  return Reduce(StmtKind::kReduceBlock, accumulator,
                kernel_.registers[accumulator].vector);
}

void KernelBuilder::Store(int buffer, Index index, int value) {
  Append({.kind = StmtKind::kStore,
          .src = {value, -1, -1},
          .buffer = buffer,
          .index = std::move(index)});
}

void KernelBuilder::ScatterAdd(int buffer, Index index,
                               std::vector<IndexedTerm> indexed, int value) {
  Append({.kind = StmtKind::kScatterAdd,
          .src = {value, -1, -1},
          .buffer = buffer,
          .index = std::move(index),
          .indexed = std::move(indexed)});
}

void KernelBuilder::Append(Stmt stmt) {
  const bool redefines = stmt.dst >= 0 && stmt.kind != StmtKind::kAccumulate &&
                         kernel_.registers[stmt.dst].tile.empty();
  if (redefines) {
    definitions_[stmt.dst] = {levels_.size() - 1, levels_.back().number};
  }
  levels_.back().statements.push_back(std::move(stmt));
}

void KernelBuilder::AppendPhases(Kernel kernel,
                                 std::span<const BufferRange> buffers,
                                 bool keep_rows) {
  const Renumbering to{static_cast<int>(kernel_.axes.size()),
                       static_cast<int>(kernel_.registers.size()), buffers};
  for (Axis& axis : kernel.axes) {
    axis.block = axis.block && keep_rows;
    kernel_.axes.push_back(std::move(axis));
  }
  for (Register& reg : kernel.registers) {
    for (int& axis : reg.tile) axis += to.axes;
    kernel_.registers.push_back(std::move(reg));
  }
  definitions_.resize(kernel_.registers.size());
  for (Phase& phase : kernel.phases) {
    for (int& axis : phase.grid) axis += to.axes;
    Renumber(phase.body, to);
    kernel_.phases.push_back(std::move(phase));
  }
}

Kernel KernelBuilder::Build() && {
  FUSOR_ASSERT(levels_.empty(), "kernel {}: an open phase", kernel_.name);
  return std::move(kernel_);
}

}  // namespace fusor::codegen
