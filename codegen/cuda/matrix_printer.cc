#include "codegen/cuda/matrix_printer.h"

#include <fmt/format.h>

#include <limits>

#include "codegen/cuda/cuda_expressions.h"
#include "codegen/cuda/thread_layout.h"
#include "ir/support/error.h"

namespace fusor::codegen {
namespace {

constexpr int64_t kTileRows = 16;
constexpr int64_t kTileColumns = 8;

}  // namespace

MatrixUnit MatrixUnitOf(const ir::Target& target) {
  return target.has_wgmma() ? MatrixUnit::kWgmma : MatrixUnit::kMma;
}

std::string SwizzledIndex(const Index& index) {
  constexpr int64_t kPattern = 512;  // elements
  Index outside{index.offset / kPattern * kPattern, {}};
  Index inside{index.offset % kPattern, {}};
  for (const Index::Term& term : index.terms) {
    (term.coefficient % kPattern == 0 ? outside : inside).terms.push_back(term);
  }
  return fmt::format("{} + Swizzle({})", CudaIndex(outside), CudaIndex(inside));
}

MatrixPrinter::MatrixPrinter(const Kernel& kernel, const Phase& phase,
                             int threads, MatrixUnit unit)
    : kernel_(kernel), warps_(threads / kWarp), unit_(unit) {
  VisitStatements(phase.body, [&](const Stmt& stmt) {
    if (stmt.kind != StmtKind::kDot) return;
    sums_.insert(stmt.dst);
    for (const Dot::Factor& factor : stmt.dot.factors) {
      factors_.insert(factor.buffer);
    }
  });
  pending_ = sums_;
  FUSOR_ASSERT(
      sums_.empty() || (threads % kWarp == 0 && kernel.lanes_per_thread() <= 8),
      "kernel {}: matrices of {} threads with {} lanes each", kernel.name,
      threads, kernel.lanes_per_thread());
}

// Groups of warps have 64 rows, and as many columns as whole tiles of the
// factors. Otherwise, returns the grid whose warps load the fewest elements of
// the factors. A warp loads tiles of columns in pairs.
MatrixPrinter::WarpGrid MatrixPrinter::GridOf(int reg) const {
  const Register& matrix = kernel_.registers[reg];
  const int64_t group_rows = matrix.rows / kTileRows;
  if (unit_ == MatrixUnit::kWgmma && matrix.rows % Dot::kTile == 0 &&
      warps_ % group_rows == 0) {
    const int64_t columns = warps_ / group_rows;
    if (matrix.columns % (Dot::kTile * columns) == 0) {
      return {group_rows, columns, MatrixUnit::kWgmma};
    }
  }
  WarpGrid best;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int64_t rows = 1; rows <= warps_; ++rows) {
    if (warps_ % rows != 0 || matrix.rows % (kTileRows * rows) != 0 ||
        matrix.columns % (2 * kTileColumns * (warps_ / rows)) != 0) {
      continue;
    }
    const int64_t loaded = matrix.rows / rows + matrix.columns * rows / warps_;
    if (loaded >= least) continue;
    least = loaded;
    best = {rows, warps_ / rows, MatrixUnit::kMma};
  }
  FUSOR_ASSERT(best.rows > 0, "kernel {}: a matrix of {}x{} in {} warps",
               kernel_.name, matrix.rows, matrix.columns, warps_);
  return best;
}

int MatrixPrinter::Unroll(const Stmt& loop) const {
  if (sums_.empty()) return 0;
  bool stores = false;
  bool computes = false;
  bool outer = false;
  bool reduces = false;
  int64_t loads = 0;  // of an iteration
  VisitStatements(loop.body, [&](const Stmt& stmt) {
    stores |= stmt.kind == StmtKind::kStore && IsFactor(stmt.buffer);
    computes |= stmt.kind == StmtKind::kCompute;
    reduces |= stmt.kind == StmtKind::kReduceBlock;
    outer |= stmt.kind == StmtKind::kDot ||
             (stmt.kind == StmtKind::kLoop && !kernel_.axes[stmt.axis].vector);
    loads += stmt.kind == StmtKind::kLoad && Names(stmt.index, loop.axis);
  });
  if (reduces) return 1;
  if (!stores || !computes) return 0;
  return outer || loads > 1 ? 1 : 2;
}

std::string MatrixPrinter::Declaration(int reg) const {
  const Register& matrix = kernel_.registers[reg];
  const WarpGrid grid = GridOf(reg);
  return fmt::format("float r{}[{}][{}][4];", reg,
                     matrix.rows / grid.rows / kTileRows,
                     matrix.columns / grid.columns / kTileColumns);
}

std::string MatrixPrinter::Dot(const Stmt& stmt) {
  pending_.insert(stmt.dst);
  std::string arguments;
  std::string layouts;
  for (const Dot::Factor& factor : stmt.dot.factors) {
    arguments += fmt::format(", b{} + {}", factor.buffer, factor.offset);
    layouts += fmt::format(", {}", factor.depth_major);
  }
  const ir::DType dtype = kernel_.buffers[stmt.dot.factors[0].buffer].dtype;
  return fmt::format("{}<{}, {}, {}{}>(r{}{});",
                     IsGrouped(stmt.dst) ? "GroupDot" : "Dot", CudaTag(dtype),
                     GridOf(stmt.dst).rows, stmt.dot.depth, layouts, stmt.dst,
                     arguments);
}

// NVRTC 12.9 crashes if a wait follows the last use of the sums.
std::string MatrixPrinter::Store(const Stmt& stmt, std::string_view place) {
  const int reg = stmt.src[0];
  const bool waits = pending_.erase(reg) > 0 && IsGrouped(reg);
  return fmt::format("{}StoreMatrix<{}, {}>({}, r{});",
                     waits ? fmt::format("WaitForProducts(r{}); ", reg) : "",
                     GridOf(reg).rows, stmt.stride, place, reg);
}

std::string MatrixPrinter::BeforeBarrier() const {
  std::string out;
  for (const int reg : pending_) {
    if (!IsGrouped(reg)) continue;
    if (out.empty()) out = "PublishFactors(); ";
    out += fmt::format("WaitForProducts(r{});", reg);
  }
  return out;
}

}  // namespace fusor::codegen
