#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "codegen/kernel/access_analysis.h"
#include "codegen/kernel/kernel_ir.h"
#include "ir/support/error.h"
#include "ir/support/philox.h"

namespace fusor::codegen {
namespace {

using ir::DType;
using ir::ScalarOp;

// Products of kDot that are added exactly, as in the emulator of CUDA's tensor
// cores.
constexpr int64_t kDotUnit = 16;

// Returns the dtype to which arithmetic on registers of `dtype` is rounded.
DType ComputeDType(DType dtype) {
  switch (dtype) {
    case DType::kF16:
    case DType::kBF16:
      return DType::kF32;
    case DType::kU8:
      return DType::kI32;
    default:
      return dtype;
  }
}

double LoadElement(const void* base, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::kF64:
      return static_cast<const double*>(base)[i];
    case DType::kF32:
      return static_cast<const float*>(base)[i];
    case DType::kF16:
      return ir::HalfToFloat(static_cast<const uint16_t*>(base)[i]);
    case DType::kBF16:
      return ir::BFloat16ToFloat(static_cast<const uint16_t*>(base)[i]);
    case DType::kI32:
      return static_cast<const int32_t*>(base)[i];
    case DType::kI64:
      return static_cast<double>(static_cast<const int64_t*>(base)[i]);
    case DType::kU8:
    case DType::kBool:
      return static_cast<const uint8_t*>(base)[i];
  }
  return 0;
}

void StoreElement(void* base, DType dtype, int64_t i, double value) {
  switch (dtype) {
    case DType::kF64:
      static_cast<double*>(base)[i] = value;
      return;
    case DType::kF32:
      static_cast<float*>(base)[i] = static_cast<float>(value);
      return;
    case DType::kF16:
      static_cast<uint16_t*>(base)[i] =
          ir::FloatToHalf(static_cast<float>(value));
      return;
    case DType::kBF16:
      static_cast<uint16_t*>(base)[i] =
          ir::FloatToBFloat16(static_cast<float>(value));
      return;
    case DType::kI32:
      static_cast<int32_t*>(base)[i] =
          static_cast<int32_t>(RoundTo(DType::kI32, value));
      return;
    case DType::kI64:
      static_cast<int64_t*>(base)[i] = static_cast<int64_t>(value);
      return;
    case DType::kU8:
      static_cast<uint8_t*>(base)[i] =
          static_cast<uint8_t>(RoundTo(DType::kU8, value));
      return;
    case DType::kBool:
      static_cast<uint8_t*>(base)[i] = value != 0;
      return;
  }
}

double LoadBit(const void* base, int64_t i) {
  return static_cast<const uint8_t*>(base)[i / 8] >> (i % 8) & 1;
}

void StoreBit(void* base, int64_t i, double value) {
  uint8_t& byte = static_cast<uint8_t*>(base)[i / 8];
  const auto bit = static_cast<uint8_t>(1U << (i % 8));
  byte = value != 0 ? byte | bit : byte & ~bit;
}

class Run {
 public:
  Run(const Kernel& kernel, void* const* buffers)
      : kernel_(kernel),
        buffers_(buffers),
        axis_(kernel.axes.size(), 0),
        registers_(kernel.registers.size()) {}

  void Phases() {
    for (const Phase& phase : kernel_.phases) {
      block_axis_ = BlockAxis(kernel_, phase);
      rows_ = NumRows(kernel_, phase);
      for (size_t r = 0; r < registers_.size(); ++r) {
        const Register& reg = kernel_.registers[r];
        const int64_t values =
            reg.rows > 0 ? reg.rows * reg.columns
                         : TileSize(kernel_, reg) * rows_ * kernel_.lanes;
        registers_[r].assign(values, 0);
      }
      Grid(phase, 0);
    }
  }

 private:
  void Grid(const Phase& phase, size_t depth) {
    if (depth == phase.grid.size()) return Body(phase.body);
    // A task covers all indices of the block axis. Execute iterates over them.
    if (phase.grid[depth] == block_axis_) return Grid(phase, depth + 1);
    Along(phase.grid[depth], [&] { Grid(phase, depth + 1); });
  }

  template <typename Each>
  void Along(int axis, Each each) {
    const Axis& a = kernel_.axes[axis];
    const int64_t step = a.vector ? kernel_.lanes : 1;
    const int outer_active = active_;
    const int outer_vector = vector_axis_;
    for (axis_[axis] = 0; axis_[axis] < a.extent; axis_[axis] += step) {
      if (a.vector) {
        vector_axis_ = axis;
        active_ = static_cast<int>(
            std::min<int64_t>(kernel_.lanes, a.extent - axis_[axis]));
      }
      each();
    }
    active_ = outer_active;
    vector_axis_ = outer_vector;
  }

  void Body(const std::vector<Stmt>& body) {
    for (const Stmt& stmt : body) Execute(stmt);
  }

  int64_t At(const Index& index, int lane) const {
    int64_t i = index.offset;
    for (const Index::Term& term : index.terms) {
      const int64_t extra = term.axis == vector_axis_ ? lane : 0;
      i += term.coefficient * (axis_[term.axis] + extra);
    }
    return i;
  }

  // Returns the lanes to process: all for accumulators outside vector axes.
  int Lanes(bool vector) const {
    if (!vector) return 1;
    return vector_axis_ < 0 ? kernel_.lanes : ActiveLanes();
  }

  // Returns the lanes of the current row for which the bounds of all guards
  // hold, which are the first ones.
  int ActiveLanes() const {
    int64_t lanes = active_;
    for (const Bound* bound : bounds_) {
      const int64_t left = bound->extent - At(bound->index, 0);
      const bool differs = Names(bound->index, vector_axis_);
      lanes = left <= 0 ? 0 : differs ? std::min(lanes, left) : lanes;
    }
    return static_cast<int>(lanes);
  }

  // Returns the position of a lane of the register at the current indices of
  // its tile axes and in the current row.
  int64_t Position(int reg, int lane) const {
    int64_t value = 0;
    for (const int axis : kernel_.registers[reg].tile) {
      value = value * kernel_.axes[axis].extent + axis_[axis];
    }
    return (value * rows_ + row_) * kernel_.lanes + lane;
  }
  double& Lane(int reg, int lane) {
    return registers_[reg][Position(reg, lane)];
  }
  double Lane(int reg, int lane) const {
    return registers_[reg][Position(reg, lane)];
  }

  double Get(int reg, int lane) const {
    return Lane(reg, kernel_.registers[reg].vector ? lane : 0);
  }

  void Set(const Stmt& stmt, int lane, double value) {
    Lane(stmt.dst, lane) = Rounded(RoundingOf(stmt), value);
  }

  // Returns the dtype to which the statement's result is rounded.
  DType RoundingOf(const Stmt& stmt) const {
    const DType dtype = kernel_.registers[stmt.dst].dtype;
    return stmt.round ? dtype : ComputeDType(dtype);
  }

  static double Rounded(DType dtype, double value) {
    if (dtype == DType::kF32) return static_cast<float>(value);
    // The infinite identity of an integer maximum or minimum represents the
    // least or greatest integer.
    if (std::isinf(value) && !ir::IsFloat(dtype)) return value;
    return RoundTo(dtype, value);
  }

  double Element(int buffer, int64_t i) const {
    const KernelBuffer& b = kernel_.buffers[buffer];
    FUSOR_ASSERT(i >= 0 && i < b.elements, "{}: {}[{}] of {}", kernel_.name,
                 b.name, i, b.elements);
    return b.packed ? LoadBit(buffers_[buffer], i)
                    : LoadElement(buffers_[buffer], b.dtype, i);
  }

  void Execute(const Stmt& stmt) {
    if (stmt.kind == StmtKind::kLoop) {
      return Along(stmt.axis, [&] { Body(stmt.body); });
    }
    if (stmt.kind == StmtKind::kReduceBlock) return ReduceBlock(stmt);
    if (stmt.kind == StmtKind::kGuard) return Guard(stmt);
    if (stmt.kind == StmtKind::kContract) {
      return Along(stmt.axis, [&] {
        Body(stmt.body);
        AddProducts(stmt, 0);
      });
    }
    if (IsOfMatrix(stmt)) return ExecuteMatrix(stmt);
    const bool one =
        (stmt.kind == StmtKind::kStore || stmt.kind == StmtKind::kScatterAdd) &&
        !NamesBlockAxis(stmt);
    for (row_ = 0; row_ < (one ? 1 : rows_); ++row_) {
      if (block_axis_ >= 0) axis_[block_axis_] = row_;
      if (bounds_.empty() || ActiveLanes() > 0) ExecuteRow(stmt);
    }
  }

  void Guard(const Stmt& stmt) {
    const size_t outer = bounds_.size();
    for (const Bound& bound : stmt.bounds) bounds_.push_back(&bound);
    Body(stmt.body);
    if (stmt.dst >= 0) {
      const int lanes = kernel_.registers[stmt.dst].vector ? kernel_.lanes : 1;
      for (row_ = 0; row_ < rows_; ++row_) {
        if (block_axis_ >= 0) axis_[block_axis_] = row_;
        const int active = ActiveLanes();
        for (int lane = 0; lane < lanes; ++lane) {
          Lane(stmt.dst, lane) = lane < active ? Get(stmt.src[0], lane) : 0;
        }
      }
    }
    bounds_.resize(outer);
  }

  // Whether the block executes the statement as a whole.
  bool IsOfMatrix(const Stmt& stmt) const {
    return stmt.kind == StmtKind::kDot || stmt.kind == StmtKind::kStoreMatrix ||
           stmt.kind == StmtKind::kBarrier ||
           (stmt.kind == StmtKind::kInit &&
            kernel_.registers[stmt.dst].rows > 0);
  }

  void ExecuteMatrix(const Stmt& stmt) {
    if (stmt.kind == StmtKind::kBarrier) return;  // statements run in order
    if (stmt.kind == StmtKind::kInit) {
      std::fill(registers_[stmt.dst].begin(), registers_[stmt.dst].end(), 0);
      return;
    }
    const bool stores = stmt.kind == StmtKind::kStoreMatrix;
    const int reg = stores ? stmt.src[0] : stmt.dst;
    const Register& matrix = kernel_.registers[reg];
    for (int64_t row = 0; row < matrix.rows; ++row) {
      for (int64_t column = 0; column < matrix.columns; ++column) {
        double& value = registers_[reg][row * matrix.columns + column];
        if (stores) {
          StoreAt(stmt.buffer, At(stmt.index, 0) + row * stmt.stride + column,
                  value);
        } else {
          for (int64_t k = 0; k < stmt.dot.depth; k += kDotUnit) {
            value =
                Rounded(DType::kF32, value + DotAt(stmt.dot, row, column, k));
          }
        }
      }
    }
  }

  // Returns the sum of the products from `first` on.
  double DotAt(const Dot& dot, int64_t row, int64_t column,
               int64_t first) const {
    const auto element = [&](size_t f, int64_t i, int64_t k) {
      return Element(dot.factors[f].buffer, dot.factors[f].at(i, k));
    };
    double sum = 0;
    for (int64_t k = first; k < std::min(first + kDotUnit, dot.depth); ++k) {
      sum += element(0, row, k) * element(1, column, k);
    }
    return sum;
  }

  bool NamesBlockAxis(const Stmt& stmt) const {
    return std::any_of(stmt.index.terms.begin(), stmt.index.terms.end(),
                       [&](const auto& t) {
                         return t.axis == block_axis_ && t.coefficient != 0;
                       });
  }

  void ExecuteRow(const Stmt& stmt) {
    if (stmt.kind == StmtKind::kStore) return Store(stmt);
    if (stmt.kind == StmtKind::kStoreTile) return StoreTile(stmt);
    if (stmt.kind == StmtKind::kScatterAdd) return ScatterAdd(stmt);
    if (stmt.kind == StmtKind::kReduceLanes) return ReduceLanes(stmt);
    const int lanes = Lanes(kernel_.registers[stmt.dst].vector);
    if (stmt.kind == StmtKind::kLoad) {
      LoadLanes(stmt, lanes);
    } else if (stmt.kind == StmtKind::kCompute ||
               stmt.kind == StmtKind::kAccumulate) {
      ComputeLanes(stmt, lanes);
    } else {
      for (int lane = 0; lane < lanes; ++lane) {
        Set(stmt, lane, Evaluate(stmt, lane));
      }
    }
    if (stmt.kind == StmtKind::kInit) {  // masked lanes keep the identity
      for (int lane = 0; lane < kernel_.lanes; ++lane) {
        Lane(stmt.dst, lane) = ir::ReductionIdentity(stmt.op);
      }
    }
  }

  // Along the tile axes of dst from `depth` on: dst += src[0] * src[1].
  void AddProducts(const Stmt& stmt, size_t depth) {
    const Register& dst = kernel_.registers[stmt.dst];
    if (depth < dst.tile.size()) {
      return Along(dst.tile[depth], [&] { AddProducts(stmt, depth + 1); });
    }
    const DType to = ComputeDType(dst.dtype);
    for (row_ = 0; row_ < rows_; ++row_) {
      for (int lane = 0; lane < Lanes(dst.vector); ++lane) {
        const double product =
            Rounded(to, Get(stmt.src[0], lane) * Get(stmt.src[1], lane));
        Set(stmt, lane, Get(stmt.dst, lane) + product);
      }
    }
  }

  void LoadLanes(const Stmt& stmt, int lanes) {
    const DType to = RoundingOf(stmt);
    const int64_t first = At(stmt.index, 0);
    const int64_t step = lanes > 1 ? At(stmt.index, 1) - first : 0;
    double* const out = &Lane(stmt.dst, 0);
    for (int lane = 0; lane < lanes; ++lane) {
      out[lane] = Rounded(to, Element(stmt.buffer, first + lane * step));
    }
  }

  // Executes kCompute, and kAccumulate, whose first operand is its dst.
  void ComputeLanes(const Stmt& stmt, int lanes) {
    const bool accumulates = stmt.kind == StmtKind::kAccumulate;
    const int arity = accumulates ? 2 : ir::ScalarArity(stmt.op);
    const ir::ScalarFunction function = ir::ScalarEvaluator(stmt.op);
    const DType to = RoundingOf(stmt);
    const double* from[3] = {};
    int step[3] = {};  // 0: the same for all lanes
    for (int i = 0; i < arity; ++i) {
      const int reg = !accumulates ? stmt.src[i]
                      : i == 0     ? stmt.dst
                                   : stmt.src[0];
      from[i] = &Lane(reg, 0);
      step[i] = kernel_.registers[reg].vector ? 1 : 0;
    }
    double* const out = &Lane(stmt.dst, 0);
    for (int lane = 0; lane < lanes; ++lane) {
      double operands[3] = {};
      for (int i = 0; i < arity; ++i) operands[i] = from[i][lane * step[i]];
      out[lane] = Rounded(to, function(operands));
    }
  }

  double Evaluate(const Stmt& stmt, int lane) {
    switch (stmt.kind) {
      case StmtKind::kConstant:
        return stmt.constant;
      case StmtKind::kIndexValue:
        return static_cast<double>(At(stmt.index, lane));
      case StmtKind::kRandom:
        return RandomUniform(static_cast<uint64_t>(Get(stmt.src[0], lane)),
                             static_cast<uint32_t>(Get(stmt.src[1], lane)),
                             static_cast<uint32_t>(stmt.site),
                             static_cast<uint32_t>(stmt.rank),
                             static_cast<uint64_t>(At(stmt.index, lane)));
      case StmtKind::kInit:
        return ir::ReductionIdentity(stmt.op);
      case StmtKind::kGather: {
        const DType dtype = kernel_.buffers[stmt.buffer].dtype;
        const std::optional<int64_t> i = IndexedAt(stmt, lane);
        if (i.has_value()) return Element(stmt.buffer, *i);
        return ir::IsFloat(dtype) ? NAN : 0;
      }
      default:
        FUSOR_ASSERT(false, "{}: a statement without a value", kernel_.name);
    }
  }

  void Store(const Stmt& stmt) {
    const bool vector =
        vector_axis_ >= 0 &&
        std::any_of(stmt.index.terms.begin(), stmt.index.terms.end(),
                    [&](const auto& t) { return t.axis == vector_axis_; });
    for (int lane = 0; lane < (vector ? ActiveLanes() : 1); ++lane) {
      StoreAt(stmt.buffer, At(stmt.index, lane), Get(stmt.src[0], lane));
    }
  }

  void StoreAt(int buffer, int64_t i, double value) {
    const KernelBuffer& b = kernel_.buffers[buffer];
    FUSOR_ASSERT(i >= 0 && i < b.elements, "{}: {}[{}] of {}", kernel_.name,
                 b.name, i, b.elements);
    if (b.packed) {
      StoreBit(buffers_[buffer], i, value);
    } else {
      StoreElement(buffers_[buffer], b.dtype, i, value);
    }
  }

  // Returns the lane's element; nullopt if it is outside.
  std::optional<int64_t> IndexedAt(const Stmt& stmt, int lane) const {
    int64_t i = At(stmt.index, lane);
    for (const IndexedTerm& term : stmt.indexed) {
      const double value = Get(term.reg, lane);
      if (value < 0 || value >= static_cast<double>(term.extent)) return {};
      i += term.stride * static_cast<int64_t>(value);
    }
    return i;
  }

  void ScatterAdd(const Stmt& stmt) {
    const KernelBuffer& b = kernel_.buffers[stmt.buffer];
    const int lanes =
        vector_axis_ >= 0 && Names(stmt.index, vector_axis_) ? active_ : 1;
    for (int lane = 0; lane < lanes; ++lane) {
      const std::optional<int64_t> i = IndexedAt(stmt, lane);
      if (!i.has_value()) continue;
      StoreElement(buffers_[stmt.buffer], b.dtype, *i,
                   Element(stmt.buffer, *i) + Get(stmt.src[0], lane));
    }
  }

  void StoreTile(const Stmt& stmt) {
    const TileStore& tile = stmt.tile;
    const KernelBuffer& b = kernel_.buffers[stmt.buffer];
    for (size_t e = 0; e < tile.order.size(); ++e) {
      const auto number = static_cast<int64_t>(e);
      const int64_t i = At(stmt.index, 0) + number / tile.run * tile.stride +
                        number % tile.run;
      FUSOR_ASSERT(i >= 0 && i < b.elements, "{}: {}[{}] of {}", kernel_.name,
                   b.name, i, b.elements);
      const int from = tile.order[e];
      StoreElement(
          buffers_[stmt.buffer], b.dtype, i,
          Get(tile.sources[from / kernel_.lanes], from % kernel_.lanes));
    }
  }

  void ReduceLanes(const Stmt& stmt) {
    if (!kernel_.registers[stmt.src[0]].vector) {
      return Set(stmt, 0, Get(stmt.src[0], 0));
    }
    const double* first = &Lane(stmt.src[0], 0);
    std::vector<double> lanes(first, first + kernel_.lanes);
    for (int half = kernel_.lanes / 2; half >= 1; half /= 2) {
      for (int i = 0; i < half; ++i) {
        const double pair[] = {lanes[i], lanes[i + half]};
        Set(stmt, 0, ir::EvalScalar(stmt.op, pair));
        lanes[i] = Lane(stmt.dst, 0);
      }
    }
    Set(stmt, 0, lanes[0]);
  }

  void ReduceBlock(const Stmt& stmt) {
    const int lanes = kernel_.registers[stmt.dst].vector ? kernel_.lanes : 1;
    registers_[stmt.dst] = registers_[stmt.src[0]];
    int64_t half = 1;
    while (2 * half < rows_) half *= 2;
    for (; half >= 1; half /= 2) {
      for (int64_t row = 0; row < half && row + half < rows_; ++row) {
        for (int lane = 0; lane < lanes; ++lane) {
          row_ = row + half;
          const double upper = Lane(stmt.dst, lane);
          row_ = row;
          const double pair[] = {Lane(stmt.dst, lane), upper};
          Set(stmt, lane, ir::EvalScalar(stmt.op, pair));
        }
      }
    }
    for (int64_t row = 1; row < rows_; ++row) {
      std::copy_n(registers_[stmt.dst].begin(), lanes,
                  registers_[stmt.dst].begin() + row * kernel_.lanes);
    }
  }

  const Kernel& kernel_;
  void* const* buffers_;
  std::vector<int64_t> axis_;
  std::vector<std::vector<double>> registers_;
  int block_axis_ = -1;  // of the phase
  int64_t rows_ = 1;     // of the phase
  int64_t row_ = 0;
  int vector_axis_ = -1;
  int active_ = 1;
  Bounds bounds_;  // of the open guards
};

}  // namespace

void InterpretKernel(const Kernel& kernel, void* const* buffers) {
  Run(kernel, buffers).Phases();
}

}  // namespace fusor::codegen
