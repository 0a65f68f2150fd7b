// Verify() of kernel_ir.h. Rules not stated there:
//   - A register that is first written in a loop is undefined after the loop.
//     All registers are undefined at the start of a phase.
//   - Outside a vector axis, vector registers may be initialised, combined lane
//     by lane and reduced, but not loaded or stored.
//   - Inside a vector axis, kReduceLanes accepts only a register initialised by
//     kInit: the masked lanes of any other are undefined.
//   - A tile register has at most kMaxTile values. kReduceLanes and
//   kReduceBlock
//     do not take it.
//   - Local buffers have at most kMaxLocalBytes; on a GPU, those of a kernel
//     together kMaxSharedBytes. Their indices use no grid axis but a block
//     axis.
//   - A phase has at most one block axis, in its grid; kReduceBlock needs one.
//   - A matrix register has at most kMaxMatrix elements; its extents and the
//     depth of a kDot are multiples of kMatrixUnit. Code generators for GPUs
//     demand more.
//   - On a GPU, a kBarrier is between a store to a local buffer and a load of
//     it, and between a load and a store, also from one iteration to the next.
//   - A bound's index has different values at all indices of its axes. At most
//     one of the bounds of all open guards differs between lanes; its vector
//     axis has no other masked lanes.
//   - A guard's body sets no register that was set before, except accumulators,
//     and no register that it sets is defined after it. All threads can leave
//     it out: it has no vector axes, reductions or barriers, and each of its
//     stores uses the vector axis and the block axis.

#include <algorithm>
#include <cctype>

#include "codegen/kernel/access_analysis.h"
#include "codegen/kernel/bitmask.h"
#include "codegen/kernel/kernel_ir.h"
#include "ir/support/error.h"
#include "ir/support/integer_math.h"
#include "ir/tensor_type.h"

namespace fusor::codegen {
namespace {

constexpr int kMaxLanes = 64;         // per thread
constexpr int kMaxBlockLanes = 8192;  // per row of threads
constexpr int64_t kMaxTile = 64;      // values of a tile register
constexpr int64_t kMaxMatrix = 1 << 16;
constexpr int64_t kMatrixUnit = 8;

bool IsReduction(ir::ScalarOp op) {
  switch (op) {
    case ir::ScalarOp::kAdd:
    case ir::ScalarOp::kMul:
    case ir::ScalarOp::kMaximum:
    case ir::ScalarOp::kMinimum:
    case ir::ScalarOp::kAnd:
    case ir::ScalarOp::kOr:
      return true;
    default:
      return false;
  }
}

bool IsIdentifier(const std::string& name) {
  return !name.empty() && !std::isdigit(static_cast<unsigned char>(name[0])) &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return std::isalnum(c) || c == '_';
         });
}

class Verifier {
 public:
  explicit Verifier(const Kernel& kernel) : kernel_(kernel) {}

  void Run() {
    FUSOR_ASSERT(IsIdentifier(kernel_.name), "kernel \"{}\": not an identifier",
                 kernel_.name);
    const int width = kernel_.lanes_per_thread();
    FUSOR_ASSERT(width >= 1 && width <= kMaxLanes && width <= kernel_.lanes &&
                     kernel_.lanes <= kMaxBlockLanes &&
                     (kernel_.lanes & (kernel_.lanes - 1)) == 0 &&
                     (width & (width - 1)) == 0,
                 "kernel {}: {} lanes, {} a thread", kernel_.name,
                 kernel_.lanes, width);
    FUSOR_ASSERT(!kernel_.phases.empty(), "kernel {}: no phases", kernel_.name);
    for (const Axis& axis : kernel_.axes) {
      FUSOR_ASSERT(axis.extent >= 1, "kernel {}: axis {} of extent {}",
                   kernel_.name, axis.name, axis.extent);
    }
    for (const KernelBuffer& buffer : kernel_.buffers) CheckLocal(buffer);
    for (size_t r = 0; r < kernel_.registers.size(); ++r) {
      CheckTileAxes(r);
      CheckMatrix(r);
    }
    const int64_t shared = SharedMemoryOf(kernel_).bytes;
    FUSOR_ASSERT(!IsBlocked() || shared <= kMaxSharedBytes,
                 "kernel {}: local buffers of {} bytes in shared memory",
                 kernel_.name, shared);
    for (const Phase& phase : kernel_.phases) VerifyPhase(phase);
    CheckAccesses(kernel_);
    for (size_t b = 0; b < kernel_.buffers.size(); ++b) CheckPacking(b);
  }

 private:
  void CheckLocal(const KernelBuffer& buffer) const {
    FUSOR_ASSERT(!buffer.local ||
                     (buffer.scratch && buffer.num_bytes() <= kMaxLocalBytes),
                 "kernel {}: {} of {} bytes is local", kernel_.name,
                 buffer.name, buffer.num_bytes());
    if (buffer.shares < 0) return;
    const bool known = buffer.shares < static_cast<int>(kernel_.buffers.size());
    FUSOR_ASSERT(buffer.local && known &&
                     kernel_.buffers[buffer.shares].local &&
                     kernel_.buffers[buffer.shares].shares < 0,
                 "kernel {}: {} shares the memory of b{}", kernel_.name,
                 buffer.name, buffer.shares);
  }

  // Whether threads share the lanes of a task.
  bool IsBlocked() const { return kernel_.width != 0; }

  bool IsMatrix(int reg) const { return kernel_.registers[reg].rows > 0; }

  void CheckMatrix(size_t r) const {
    const Register& reg = kernel_.registers[r];
    if (reg.rows == 0 && reg.columns == 0) return;
    const bool fits = reg.rows > 0 && reg.columns > 0 &&
                      reg.rows <= kMaxMatrix / reg.columns &&
                      reg.rows % kMatrixUnit == 0 &&
                      reg.columns % kMatrixUnit == 0;
    FUSOR_ASSERT(fits && IsBlocked() && reg.dtype == ir::DType::kF32 &&
                     !reg.vector && reg.tile.empty(),
                 "kernel {}: r{} is a matrix of {}x{}", kernel_.name, r,
                 reg.rows, reg.columns);
  }

  void CheckPacking(size_t b) const {
    const KernelBuffer& buffer = kernel_.buffers[b];
    FUSOR_ASSERT(
        !buffer.packed || (buffer.dtype == ir::DType::kBool &&
                           AccessedByWholeBytes(kernel_, static_cast<int>(b))),
        "kernel {}: {} of {} is packed, but not accessed by whole "
        "bytes of bits",
        kernel_.name, buffer.name, ir::DTypeName(buffer.dtype));
  }

  void CheckTileAxes(size_t r) const {
    int64_t size = 1;
    std::vector<int> seen;
    for (const int id : kernel_.registers[r].tile) {
      const bool known = id >= 0 && id < static_cast<int>(kernel_.axes.size());
      FUSOR_ASSERT(known && !kernel_.axes[id].vector &&
                       !kernel_.axes[id].block &&
                       std::count(seen.begin(), seen.end(), id) == 0,
                   "kernel {}: r{} has tile axis a{}", kernel_.name, r, id);
      seen.push_back(id);
      size *= std::min(kernel_.axes[id].extent, kMaxTile + 1);
      FUSOR_ASSERT(size <= kMaxTile,
                   "kernel {}: r{} has a tile of more than {} values",
                   kernel_.name, r, kMaxTile);
    }
  }

  void VerifyPhase(const Phase& phase) {
    open_.assign(kernel_.axes.size(), false);
    defined_.assign(kernel_.registers.size(), false);
    started_.assign(kernel_.registers.size(), false);
    vector_axis_ = -1;
    block_axis_ = -1;
    grid_ = phase.grid;
    for (size_t i = 0; i < phase.grid.size(); ++i) {
      Open(phase.grid[i]);
      FUSOR_ASSERT(vector_axis_ < 0 || i + 1 == phase.grid.size(),
                   "kernel {}: vector axis a{} is not the last of its grid",
                   kernel_.name, phase.grid[i]);
      if (!kernel_.axes[phase.grid[i]].block) continue;
      FUSOR_ASSERT(block_axis_ < 0, "kernel {}: block axes a{} and a{}",
                   kernel_.name, block_axis_, phase.grid[i]);
      block_axis_ = phase.grid[i];
    }
    VerifyBody(phase.body);
  }

  void Open(int axis) {
    FUSOR_ASSERT(axis >= 0 && axis < static_cast<int>(kernel_.axes.size()) &&
                     !open_[axis],
                 "kernel {}: axis a{} is unknown or already open", kernel_.name,
                 axis);
    open_[axis] = true;
    if (!kernel_.axes[axis].vector) return;
    FUSOR_ASSERT(vector_axis_ < 0,
                 "kernel {}: vector axis a{} inside vector axis a{}",
                 kernel_.name, axis, vector_axis_);
    vector_axis_ = axis;
  }

  void VerifyBody(const std::vector<Stmt>& body) {
    for (const Stmt& stmt : body) {
      if (stmt.kind == StmtKind::kLoop) {
        VerifyLoop(stmt);
      } else if (stmt.kind == StmtKind::kContract) {
        VerifyContract(stmt);
      } else if (stmt.kind == StmtKind::kGuard) {
        VerifyGuard(stmt);
      } else {
        VerifyStmt(stmt);
      }
    }
  }

  void VerifyGuard(const Stmt& stmt) {
    FUSOR_ASSERT(IsBlocked() && !stmt.bounds.empty(), "kernel {}: {}: {}",
                 kernel_.name, Print(stmt),
                 IsBlocked() ? "no bounds" : "no thread blocks");
    const Bounds outer_bounds = bounds_;
    const std::vector<bool> outer_set = set_outside_;
    const std::vector<bool> outer_defined = set_outside_ = defined_;
    for (const Bound& bound : stmt.bounds) {
      CheckBound(stmt, bound);
      bounds_.push_back(&bound);
    }
    VerifyBody(stmt.body);
    if (stmt.dst >= 0) Read(stmt.src[0]);
    const bool vector = std::ranges::any_of(stmt.bounds, [&](const Bound& b) {
      return VectorCoefficient(b.index) != 0;
    });
    bounds_ = outer_bounds;
    set_outside_ = outer_set;
    defined_ = outer_defined;
    if (stmt.dst < 0) return;
    FUSOR_ASSERT(IsVector(stmt.dst) || (!vector && !IsVector(stmt.src[0])),
                 "kernel {}: {}: the uniform r{} differs between lanes",
                 kernel_.name, Print(stmt), stmt.dst);
    Define(stmt);
  }

  void CheckBound(const Stmt& guard, const Bound& bound) const {
    CheckIndex(bound.index);
    std::vector<Index::Term> terms = bound.index.terms;
    std::erase_if(terms, [&](const Index::Term& term) {
      return term.coefficient == 0 || kernel_.axes[term.axis].extent == 1;
    });
    std::ranges::sort(terms, {}, &Index::Term::coefficient);
    int64_t last = 0;
    bool one_to_one = true;
    for (const Index::Term& term : terms) {
      int64_t reach = 0;
      one_to_one &=
          term.coefficient > last &&
          !__builtin_mul_overflow(term.coefficient,
                                  kernel_.axes[term.axis].extent - 1, &reach) &&
          !__builtin_add_overflow(last, reach, &last) &&
          last < ir::kMaxElements;
    }
    FUSOR_ASSERT(one_to_one && bound.index.offset >= 0 &&
                     bound.extent > bound.index.offset &&
                     bound.extent <= ir::kMaxElements,
                 "kernel {}: {}: an index with repeated values, or an empty "
                 "range",
                 kernel_.name, Print(guard));
    if (VectorCoefficient(bound.index) == 0) return;
    const bool only = std::ranges::none_of(bounds_, [&](const Bound* other) {
      return VectorCoefficient(other->index) != 0;
    });
    FUSOR_ASSERT(only && kernel_.axes[vector_axis_].extent % kernel_.lanes == 0,
                 "kernel {}: {}: its lanes are already masked", kernel_.name,
                 Print(guard));
  }

  // Checks that threads for which the bounds do not hold can leave the
  // statement out.
  void CheckInGuard(const Stmt& stmt) const {
    switch (stmt.kind) {
      case StmtKind::kReduceLanes:
      case StmtKind::kReduceBlock:
      case StmtKind::kStoreTile:
      case StmtKind::kScatterAdd:
        FUSOR_ASSERT(false, "kernel {}: {}: inside a guard", kernel_.name,
                     Print(stmt));
      case StmtKind::kStore: {
        const bool block = block_axis_ < 0 ||
                           kernel_.axes[block_axis_].extent == 1 ||
                           Names(stmt.index, block_axis_);
        FUSOR_ASSERT(block && VectorCoefficient(stmt.index) != 0,
                     "kernel {}: {}: one thread stores inside a guard",
                     kernel_.name, Print(stmt));
        break;
      }
      default:
        break;
    }
  }

  bool IsTile(int reg) const { return !kernel_.registers[reg].tile.empty(); }

  bool HasTileAxis(int reg, int axis) const {
    const std::vector<int>& tile = kernel_.registers[reg].tile;
    return std::count(tile.begin(), tile.end(), axis) > 0;
  }

  void VerifyContract(const Stmt& stmt) {
    FUSOR_ASSERT(bounds_.empty(), "kernel {}: {}: inside a guard", kernel_.name,
                 Print(stmt));
    VerifyLoop(stmt);
    for (const int reg : {stmt.dst, stmt.src[0], stmt.src[1]}) {
      CheckRegister(reg);
      FUSOR_ASSERT(in_contract_[reg],
                   "kernel {}: {}: r{} is read before it is written",
                   kernel_.name, Print(stmt), reg);
      for (const int axis : kernel_.registers[reg].tile) {
        FUSOR_ASSERT(!open_[axis] && HasTileAxis(stmt.dst, axis),
                     "kernel {}: {}: tile axis a{} of r{} is {}", kernel_.name,
                     Print(stmt), axis, reg,
                     open_[axis] ? "open" : "no tile axis of the result");
      }
    }
    FUSOR_ASSERT(IsTile(stmt.dst) && !HasTileAxis(stmt.dst, stmt.axis),
                 "kernel {}: {}: r{} is no tile across a{}", kernel_.name,
                 Print(stmt), stmt.dst, stmt.axis);
    FUSOR_ASSERT(kernel_.registers[stmt.dst].dtype != ir::DType::kBool &&
                     !kernel_.axes[stmt.axis].vector,
                 "kernel {}: {}: {} sums along {} axis", kernel_.name,
                 Print(stmt), ir::DTypeName(kernel_.registers[stmt.dst].dtype),
                 kernel_.axes[stmt.axis].vector ? "a vector" : "a serial");
    const bool vector = IsVector(stmt.src[0]) || IsVector(stmt.src[1]);
    FUSOR_ASSERT(IsVector(stmt.dst) || !vector,
                 "kernel {}: {}: a uniform sum of vectors", kernel_.name,
                 Print(stmt));
    FUSOR_ASSERT(!IsVector(stmt.dst) || vector_axis_ >= 0,
                 "kernel {}: {}: vector r{} outside a vector axis",
                 kernel_.name, Print(stmt), stmt.dst);
    started_[stmt.dst] = false;
  }

  void VerifyLoop(const Stmt& stmt) {
    const int outer_vector_axis = vector_axis_;
    const std::vector<bool> outer_defined = defined_;
    Open(stmt.axis);
    FUSOR_ASSERT(!kernel_.axes[stmt.axis].block,
                 "kernel {}: a loop over block axis a{}", kernel_.name,
                 stmt.axis);
    FUSOR_ASSERT(bounds_.empty() || !kernel_.axes[stmt.axis].vector,
                 "kernel {}: a loop over vector axis a{} inside a guard",
                 kernel_.name, stmt.axis);
    FUSOR_ASSERT(!stmt.descending || HasIndependentIterations(stmt),
                 "kernel {}: iterations of the descending loop over a{} depend "
                 "on their order",
                 kernel_.name, stmt.axis);
    VerifyBody(stmt.body);
    open_[stmt.axis] = false;
    vector_axis_ = outer_vector_axis;
    in_contract_ = defined_;
    // A loop over a tile axis has written all indices of it.
    for (size_t r = 0; r < defined_.size(); ++r) {
      defined_[r] =
          outer_defined[r] ||
          (defined_[r] && HasTileAxis(static_cast<int>(r), stmt.axis));
    }
  }

  void VerifyStmt(const Stmt& stmt) {
    FUSOR_ASSERT(stmt.body.empty(), "kernel {}: a body outside a loop",
                 kernel_.name);
    if (!bounds_.empty()) CheckInGuard(stmt);
    switch (stmt.kind) {
      case StmtKind::kLoop:
      case StmtKind::kContract:
      case StmtKind::kGuard:
        break;
      case StmtKind::kConstant:
        Define(stmt);
        break;
      case StmtKind::kLoad:
        CheckAccess(stmt);
        CheckVectorIndex(stmt, IsVector(stmt.dst));
        Define(stmt);
        break;
      case StmtKind::kStore:
        CheckStore(stmt);
        break;
      case StmtKind::kIndexValue:
        CheckIndex(stmt.index);
        CheckVectorIndex(stmt, IsVector(stmt.dst));
        Define(stmt);
        break;
      case StmtKind::kRandom:
        CheckRandom(stmt);
        break;
      case StmtKind::kCompute:
        CheckCompute(stmt);
        break;
      case StmtKind::kInit:
        CheckReduction(stmt);
        Define(stmt);
        if (IsMatrix(stmt.dst)) CheckMatrixStmt(stmt);
        started_[stmt.dst] = true;
        break;
      case StmtKind::kAccumulate:
        CheckReduction(stmt);
        Read(stmt.dst);
        Read(stmt.src[0]);
        FUSOR_ASSERT(IsVector(stmt.dst) || !IsVector(stmt.src[0]),
                     "kernel {}: r{} accumulates the vector r{}", kernel_.name,
                     stmt.dst, stmt.src[0]);
        break;
      case StmtKind::kReduceLanes:
        CheckReduceLanes(stmt);
        break;
      case StmtKind::kStoreTile:
        CheckStoreTile(stmt);
        break;
      case StmtKind::kGather:
        CheckIndexed(stmt);
        FUSOR_ASSERT(!kernel_.buffers[stmt.buffer].written,
                     "kernel {}: gather from {}, which is written",
                     kernel_.name, kernel_.buffers[stmt.buffer].name);
        CheckVectorIndex(stmt, IsVector(stmt.dst));
        Define(stmt);
        break;
      case StmtKind::kScatterAdd:
        CheckIndexed(stmt);
        CheckStore(stmt);
        break;
      case StmtKind::kReduceBlock:
        CheckReduceBlock(stmt);
        break;
      case StmtKind::kDot:
        CheckDot(stmt);
        break;
      case StmtKind::kStoreMatrix:
        CheckStoreMatrix(stmt);
        break;
      case StmtKind::kBarrier:
        CheckMatrixStmt(stmt);
        break;
    }
  }

  // Checks that all threads of a block execute the statement.
  void CheckMatrixStmt(const Stmt& stmt) const {
    FUSOR_ASSERT(IsBlocked() && vector_axis_ < 0, "kernel {}: {}: {}",
                 kernel_.name, Print(stmt),
                 IsBlocked() ? "inside a vector axis" : "no thread blocks");
    FUSOR_ASSERT(bounds_.empty(), "kernel {}: {}: inside a guard", kernel_.name,
                 Print(stmt));
  }

  const KernelBuffer& LocalBuffer(const Stmt& stmt, int buffer) const {
    const bool local = buffer >= 0 &&
                       buffer < static_cast<int>(kernel_.buffers.size()) &&
                       kernel_.buffers[buffer].local;
    FUSOR_ASSERT(local, "kernel {}: {}: b{} is not local", kernel_.name,
                 Print(stmt), buffer);
    return kernel_.buffers[buffer];
  }

  void CheckDot(const Stmt& stmt) {
    CheckMatrixStmt(stmt);
    CheckRegister(stmt.dst);
    const Register& dst = kernel_.registers[stmt.dst];
    FUSOR_ASSERT(defined_[stmt.dst] && IsMatrix(stmt.dst),
                 "kernel {}: {}: r{} holds no sums", kernel_.name, Print(stmt),
                 stmt.dst);
    const Dot& dot = stmt.dot;
    FUSOR_ASSERT(dot.depth > 0 && dot.depth <= Dot::kTile &&
                     dot.depth % kMatrixUnit == 0,
                 "kernel {}: {}: depth", kernel_.name, Print(stmt));
    const KernelBuffer& first = LocalBuffer(stmt, dot.factors[0].buffer);
    for (size_t f = 0; f < dot.factors.size(); ++f) {
      const Dot::Factor& factor = dot.factors[f];
      const KernelBuffer& buffer = LocalBuffer(stmt, factor.buffer);
      const int64_t free = f == 0 ? dst.rows : dst.columns;
      const bool inside =
          factor.offset >= 0 && factor.offset % Dot::kTileElements == 0 &&
          factor.offset <=
              buffer.elements - CeilDiv(free, Dot::kTile) * Dot::kTileElements;
      const bool half =
          buffer.dtype == ir::DType::kF16 || buffer.dtype == ir::DType::kBF16;
      FUSOR_ASSERT(inside && half && buffer.dtype == first.dtype,
                   "kernel {}: {}: factor {} of {}x{} in {} {}[{}]",
                   kernel_.name, Print(stmt), f, free, dot.depth,
                   ir::DTypeName(buffer.dtype), buffer.name, buffer.elements);
    }
    started_[stmt.dst] = false;
  }

  void CheckStoreMatrix(const Stmt& stmt) const {
    CheckMatrixStmt(stmt);
    CheckRegister(stmt.src[0]);
    const Register& matrix = kernel_.registers[stmt.src[0]];
    FUSOR_ASSERT(defined_[stmt.src[0]] && IsMatrix(stmt.src[0]),
                 "kernel {}: {}: r{} holds no sums", kernel_.name, Print(stmt),
                 stmt.src[0]);
    const KernelBuffer& buffer = LocalBuffer(stmt, stmt.buffer);
    const int64_t stride = stmt.stride;
    FUSOR_ASSERT(stride >= matrix.columns && stride <= buffer.elements &&
                     buffer.dtype == ir::DType::kF32,
                 "kernel {}: {}: stride", kernel_.name, Print(stmt));
    CheckAccess(stmt, (matrix.rows - 1) * stride + matrix.columns - 1);
  }

  void CheckStore(const Stmt& stmt) {
    CheckAccess(stmt);
    Read(stmt.src[0]);
    FUSOR_ASSERT(kernel_.buffers[stmt.buffer].written,
                 "kernel {}: store to {}, which is not written", kernel_.name,
                 kernel_.buffers[stmt.buffer].name);
    FUSOR_ASSERT(!IsVector(stmt.src[0]) || VectorCoefficient(stmt.index) != 0,
                 "kernel {}: all lanes of r{} go to one element of {}",
                 kernel_.name, stmt.src[0], kernel_.buffers[stmt.buffer].name);
  }

  void CheckIndexed(const Stmt& stmt) {
    FUSOR_ASSERT(!stmt.indexed.empty(), "kernel {}: {} without a register",
                 kernel_.name, Print(stmt));
    int64_t further = 0;
    bool fits = true;
    for (const IndexedTerm& term : stmt.indexed) {
      Read(term.reg);
      int64_t reach = 0;
      fits &= term.stride >= 1 && term.extent >= 1 &&
              !__builtin_mul_overflow(term.stride, term.extent - 1, &reach) &&
              !__builtin_add_overflow(further, reach, &further);
      FUSOR_ASSERT(!ir::IsFloat(kernel_.registers[term.reg].dtype) &&
                       (stmt.kind == StmtKind::kScatterAdd ||
                        IsVector(stmt.dst) || !IsVector(term.reg)),
                   "kernel {}: {}: r{} is not an index", kernel_.name,
                   Print(stmt), term.reg);
    }
    FUSOR_ASSERT(fits, "kernel {}: {}: stride or extent", kernel_.name,
                 Print(stmt));
    CheckAccess(stmt, further);
    FUSOR_ASSERT(!kernel_.buffers[stmt.buffer].packed,
                 "kernel {}: {} is packed, but accessed by index", kernel_.name,
                 kernel_.buffers[stmt.buffer].name);
  }

  void CheckStoreTile(const Stmt& stmt) const {
    const TileStore& tile = stmt.tile;
    const size_t elements = tile.sources.size() * kernel_.lanes;
    for (int reg : tile.sources) {
      Read(reg);
      FUSOR_ASSERT(IsVector(reg), "kernel {}: a tile of the uniform r{}",
                   kernel_.name, reg);
    }
    std::vector<int> sorted = tile.order;
    std::sort(sorted.begin(), sorted.end());
    bool permutes = elements > 0 && sorted.size() == elements;
    for (size_t i = 0; permutes && i < elements; ++i) {
      permutes = sorted[i] == static_cast<int>(i);
    }
    const auto size = static_cast<int64_t>(elements);
    FUSOR_ASSERT(permutes && tile.run >= 1 && size % tile.run == 0 &&
                     tile.stride >= tile.run,
                 "kernel {}: a tile of {} elements in runs of {} at {} has no "
                 "order",
                 kernel_.name, elements, tile.run, tile.stride);
    FUSOR_ASSERT(vector_axis_ >= 0 &&
                     kernel_.axes[vector_axis_].extent == kernel_.lanes &&
                     VectorCoefficient(stmt.index) == 0,
                 "kernel {}: a tile needs a vector axis of {} indices",
                 kernel_.name, kernel_.lanes);
    FUSOR_ASSERT(tile.stride <= ir::kMaxElements,
                 "kernel {}: a tile of stride {}", kernel_.name, tile.stride);
    CheckAccess(stmt, (size / tile.run - 1) * tile.stride + tile.run - 1);
    FUSOR_ASSERT(kernel_.buffers[stmt.buffer].written &&
                     !kernel_.buffers[stmt.buffer].packed,
                 "kernel {}: a tile in {}, which is not written", kernel_.name,
                 kernel_.buffers[stmt.buffer].name);
  }

  void CheckRandom(const Stmt& stmt) {
    for (int i = 0; i < 2; ++i) {
      Read(stmt.src[i]);
      FUSOR_ASSERT(!IsVector(stmt.src[i]) &&
                       !ir::IsFloat(kernel_.registers[stmt.src[i]].dtype),
                   "kernel {}: random needs a uniform integer key and step",
                   kernel_.name);
    }
    CheckIndex(stmt.index);
    CheckVectorIndex(stmt, IsVector(stmt.dst));
    Define(stmt);
  }

  void CheckCompute(const Stmt& stmt) {
    for (int i = 0; i < ir::ScalarArity(stmt.op); ++i) {
      Read(stmt.src[i]);
      FUSOR_ASSERT(IsVector(stmt.dst) || !IsVector(stmt.src[i]),
                   "kernel {}: uniform r{} computed from the vector r{}",
                   kernel_.name, stmt.dst, stmt.src[i]);
    }
    Define(stmt);
  }

  void CheckReduceLanes(const Stmt& stmt) {
    CheckReduction(stmt);
    Read(stmt.src[0]);
    FUSOR_ASSERT(
        IsVector(stmt.src[0]) && !IsVector(stmt.dst) && !IsTile(stmt.src[0]),
        "kernel {}: reduce_lanes of r{} into r{}", kernel_.name, stmt.src[0],
        stmt.dst);
    FUSOR_ASSERT(vector_axis_ < 0 || started_[stmt.src[0]],
                 "kernel {}: reduce_lanes of r{}, whose masked lanes are "
                 "undefined",
                 kernel_.name, stmt.src[0]);
    Define(stmt);
  }

  void CheckReduceBlock(const Stmt& stmt) {
    CheckReduction(stmt);
    Read(stmt.src[0]);
    FUSOR_ASSERT(
        block_axis_ >= 0 && IsVector(stmt.src[0]) == IsVector(stmt.dst) &&
            !IsTile(stmt.src[0]) && !IsTile(stmt.dst),
        "kernel {}: reduce_block of r{} into r{}{}", kernel_.name, stmt.src[0],
        stmt.dst, block_axis_ < 0 ? " without a block axis" : "");
    const bool started = started_[stmt.src[0]];
    Define(stmt);
    started_[stmt.dst] = started;
  }

  void CheckReduction(const Stmt& stmt) const {
    FUSOR_ASSERT(IsReduction(stmt.op), "kernel {}: {} is not a reduction",
                 kernel_.name, ir::ScalarOpName(stmt.op));
  }

  // Checks accesses up to `further` elements after the index.
  void CheckAccess(const Stmt& stmt, int64_t further = 0) const {
    FUSOR_ASSERT(stmt.buffer >= 0 &&
                     stmt.buffer < static_cast<int>(kernel_.buffers.size()),
                 "kernel {}: buffer b{}", kernel_.name, stmt.buffer);
    CheckIndex(stmt.index);
    const KernelBuffer& buffer = kernel_.buffers[stmt.buffer];
    for (const Index::Term& term : stmt.index.terms) {
      const bool in_grid =
          std::count(grid_.begin(), grid_.end(), term.axis) > 0;
      FUSOR_ASSERT(!buffer.local || !in_grid || kernel_.axes[term.axis].block,
                   "kernel {}: {}: index of the local {} uses grid axis a{}",
                   kernel_.name, Print(stmt), buffer.name, term.axis);
    }
    int64_t low = stmt.index.offset;
    int64_t high = low;
    bool overflow = __builtin_add_overflow(high, further, &high);
    const IndexValues values = ValuesOf(kernel_, stmt.index, bounds_);
    for (const auto& [coefficient, extent] : values.terms) {
      int64_t reach = 0;
      overflow |= __builtin_mul_overflow(coefficient, extent - 1, &reach);
      int64_t& end = reach < 0 ? low : high;
      overflow |= __builtin_add_overflow(end, reach, &end);
    }
    FUSOR_ASSERT(!overflow && low >= 0 && high < buffer.elements,
                 "kernel {}: {}: index of {} runs from {} to {} of {} elements",
                 kernel_.name, Print(stmt), buffer.name, low, high,
                 buffer.elements);
  }

  void CheckIndex(const Index& index) const {
    std::vector<int> seen;
    for (const Index::Term& term : index.terms) {
      FUSOR_ASSERT(term.axis >= 0 &&
                       term.axis < static_cast<int>(kernel_.axes.size()) &&
                       open_[term.axis],
                   "kernel {}: index uses axis a{}, which is not open",
                   kernel_.name, term.axis);
      FUSOR_ASSERT(std::count(seen.begin(), seen.end(), term.axis) == 0,
                   "kernel {}: index names axis a{} twice", kernel_.name,
                   term.axis);
      seen.push_back(term.axis);
    }
  }

  int64_t VectorCoefficient(const Index& index) const {
    return CoefficientOf(index, vector_axis_);
  }

  // A uniform register cannot hold a value that differs between lanes.
  void CheckVectorIndex(const Stmt& stmt, bool vector) const {
    FUSOR_ASSERT(vector || VectorCoefficient(stmt.index) == 0,
                 "kernel {}: uniform r{} depends on vector axis a{}",
                 kernel_.name, stmt.dst, vector_axis_);
    FUSOR_ASSERT(!vector || vector_axis_ >= 0,
                 "kernel {}: vector r{} outside a vector axis", kernel_.name,
                 stmt.dst);
  }

  bool IsVector(int reg) const {
    CheckRegister(reg);
    return kernel_.registers[reg].vector;
  }

  void CheckRegister(int reg) const {
    FUSOR_ASSERT(reg >= 0 && reg < static_cast<int>(kernel_.registers.size()),
                 "kernel {}: register r{}", kernel_.name, reg);
  }

  void Read(int reg) const {
    CheckRegister(reg);
    FUSOR_ASSERT(!IsMatrix(reg), "kernel {}: the matrix r{} has no lanes",
                 kernel_.name, reg);
    FUSOR_ASSERT(defined_[reg], "kernel {}: r{} is read before it is written",
                 kernel_.name, reg);
    CheckOpenTile(reg);
  }

  void CheckOpenTile(int reg) const {
    for (const int axis : kernel_.registers[reg].tile) {
      FUSOR_ASSERT(open_[axis],
                   "kernel {}: r{} is accessed outside its tile axis a{}",
                   kernel_.name, reg, axis);
    }
  }

  void Define(const Stmt& stmt) {
    CheckRegister(stmt.dst);
    CheckOpenTile(stmt.dst);
    const bool clears =
        stmt.kind == StmtKind::kInit && stmt.op == ir::ScalarOp::kAdd;
    FUSOR_ASSERT(!IsMatrix(stmt.dst) || clears,
                 "kernel {}: {}: the matrix r{} has no lanes", kernel_.name,
                 Print(stmt), stmt.dst);
    FUSOR_ASSERT(set_outside_.empty() || !set_outside_[stmt.dst],
                 "kernel {}: {}: a guard sets a register again", kernel_.name,
                 Print(stmt));
    defined_[stmt.dst] = true;
    started_[stmt.dst] = false;
  }

  const Kernel& kernel_;
  std::vector<bool> open_;     // by axis
  std::vector<bool> defined_;  // by register
  std::vector<bool> started_;  // by register: last written by kInit
  // By register: defined at the end of the last loop's body.
  std::vector<bool> in_contract_;
  // By register: defined before the innermost open guard; empty if none is
  // open.
  std::vector<bool> set_outside_;
  Bounds bounds_;          // of the open guards
  std::vector<int> grid_;  // of the phase
  int vector_axis_ = -1;
  int block_axis_ = -1;
};

}  // namespace

void Verify(const Kernel& kernel) { Verifier(kernel).Run(); }

}  // namespace fusor::codegen
