#include "codegen/lower/contraction_schedule.h"

#include <algorithm>

#include "codegen/kernel/access_analysis.h"
#include "codegen/kernel/kernel_builder.h"
#include "ir/support/integer_math.h"

namespace fusor::codegen {
namespace {

// FMA units and load ports per core, the latency of an FMA in cycles, and the
// cycles that a load delays FMAs.
constexpr double kFmasPerCycle = 2;
constexpr double kLoadsPerCycle = 2;
constexpr double kFmaLatency = 4;
constexpr double kLoadDelay = 0.125;
// Time of loading a whole cache line relative to other loads: it more often
// waits for the second-level cache.
constexpr double kLineLoad = 4;
constexpr int64_t kLineBytes = 64;
// Slowdown if the rows of a tile are far apart in memory.
constexpr double kDistantRows = 1.1;
// Sums over more elements are divided into chunks.
constexpr int64_t kMaxSummed = 1024;
// Rows of a task, at least: the columns of the other factor are loaded once for
// all of them.
constexpr int64_t kMinRows = 32;
constexpr int64_t kTasksPerThread = 4;

struct Tile {
  int64_t rows;
  int64_t groups;

  // Cycles per summed index. Loading a vector takes the time of `vector_load`
  // rows.
  double Cycles(double vector_load) const {
    const auto fmas = static_cast<double>(rows * groups);
    const double loads =
        static_cast<double>(rows) + vector_load * static_cast<double>(groups);
    return std::max(
               {fmas / kFmasPerCycle, loads / kLoadsPerCycle, kFmaLatency}) +
           kLoadDelay * loads;
  }
};

// Divides the extent into tiles of that size and, if possible, of the next
// smaller one, because the sums of a much smaller tile do not hide the latency
// of FMAs.
std::vector<TileRange> Tiles(int64_t extent, int64_t size) {
  std::vector<TileRange> ranges;
  const int64_t tiles = CeilDiv(extent, size);
  const int64_t missing = tiles * size - extent;
  const int64_t full = missing < tiles ? tiles - missing : extent / size;
  if (full > 0) ranges.push_back({0, full, size});
  if (full < tiles) {
    ranges.push_back(
        {full * size, tiles - full, (extent - full * size) / (tiles - full)});
  }
  return ranges;
}

double Cycles(const std::vector<TileRange>& rows,
              const std::vector<TileRange>& columns, double vector_load) {
  double cycles = 0;
  for (const TileRange& r : rows) {
    for (const TileRange& c : columns) {
      cycles += static_cast<double>(r.tiles * c.tiles) *
                Tile{r.size, c.size}.Cycles(vector_load);
    }
  }
  return cycles;
}

class Planner {
 public:
  Planner(const LoopNest& nest, const passes::Contraction& contraction,
          const Access& row_factor, const Access& column_factor,
          const ir::Target& target)
      : nest_(nest), contraction_(contraction), target_(target) {
    std::vector<std::vector<AxisPart>> unit;
    for (size_t a = 0; a < nest.axes().size(); ++a) {
      unit.push_back({{static_cast<int>(a), 1}});
    }
    of_row_ = nest.Offset(row_factor, unit);
    of_column_ = nest.Offset(column_factor, unit);
  }

  ContractionSchedule Run(int64_t lanes) {
    plan_.lanes = lanes;
    SortAxes();
    ChooseTile();
    DivideSum();
    DivideRows();
    return std::move(plan_);
  }

 private:
  int64_t Extent(int axis) const { return nest_.axes()[axis].extent; }

  void SortAxes() {
    const auto n = static_cast<int>(nest_.axes().size());
    for (int a = 0; a < n; ++a) {
      const bool in_row = CoefficientOf(of_row_, a) != 0;
      const bool in_column = CoefficientOf(of_column_, a) != 0;
      if (nest_.axes()[a].folded) {
        plan_.summed.push_back(a);
      } else if (in_row && in_column) {
        plan_.batch.push_back(a);
      } else if (in_column) {
        plan_.other_columns.push_back(a);
      } else {
        rows_.push_back(a);
      }
    }
    // Parallel axes are in the result's order: the last column is its fastest.
    plan_.vector_axis = plan_.other_columns.back();
    plan_.other_columns.pop_back();
    if (Extent(plan_.vector_axis) > plan_.lanes) {
      plan_.group_axis = plan_.vector_axis;
      plan_.partial = Extent(plan_.vector_axis) % plan_.lanes;
    } else if (!plan_.other_columns.empty()) {
      plan_.group_axis = plan_.other_columns.back();
      plan_.other_columns.pop_back();
    }
  }

  int64_t Groups() const {
    if (plan_.group_axis < 0) return 1;
    return plan_.group_axis == plan_.vector_axis
               ? Extent(plan_.vector_axis) / plan_.lanes
               : Extent(plan_.group_axis);
  }

  // Chooses the axis of rows and the size of tiles with the least cycles.
  void ChooseTile() {
    const int64_t registers = target_.vector_bytes >= 64 ? 32 : 16;
    std::vector<int> candidates = rows_;
    if (candidates.empty()) candidates.push_back(-1);
    int64_t all_rows = 1;
    for (const int axis : rows_) all_rows *= Extent(axis);
    // Adjacent rows share a cache line per summed index, of which each vector
    // may need one of its own.
    const bool adjacent = std::any_of(
        rows_.begin(), rows_.end(),
        [&](int axis) { return CoefficientOf(of_row_, axis) == 1; });
    const double vector_load =
        adjacent && target_.vector_bytes >= kLineBytes ? kLineLoad : 1;
    double best = 0;
    for (const int axis : candidates) {
      const int64_t extent = axis < 0 ? 1 : Extent(axis);
      const double others = (axis == candidates.back() ? 1 : kDistantRows) *
                            static_cast<double>(all_rows / extent);
      for (int64_t rows = 1; rows <= std::min(extent, registers); ++rows) {
        for (int64_t groups = 1; groups <= Groups(); ++groups) {
          if (rows * groups + groups + 1 > registers) break;
          const std::vector<TileRange> r = Tiles(extent, rows);
          std::vector<TileRange> c = Tiles(Groups(), groups);
          const double cycles = others * Cycles(r, c, vector_load);
          if (best != 0 && cycles >= best) continue;
          best = cycles;
          plan_.row_axis = axis;
          plan_.rows = r;
          plan_.columns = std::move(c);
        }
      }
    }
    if (plan_.partial > 0) plan_.columns.push_back({Groups(), 1, 1});
  }

  int64_t SummedElements() const {
    int64_t elements = 1;
    for (const int axis : plan_.summed) elements *= Extent(axis);
    return elements;
  }

  // Divides a long sum into chunks, unless their sums would be larger than the
  // factors.
  void DivideSum() {
    const int64_t summed = SummedElements();
    if (summed <= kMaxSummed) return;
    int64_t result = 1;
    int64_t factors = 0;
    const ir::Shape& extents = contraction_.domain.extents;
    for (size_t d = 0; d < extents.size(); ++d) {
      if (!contraction_.domain.folded[d]) result *= extents[d];
    }
    for (const int f : {0, 1}) {
      factors += contraction_.macs() / contraction_.FreeExtent(1 - f);
    }
    const int64_t most = std::max<int64_t>(1, factors / (2 * result));
    plan_.chunks = LargestDivisor(Extent(plan_.summed[0]),
                                  std::min(most, CeilDiv(summed, kMaxSummed)));
  }

  // Gives each task as many rows as half the second-level cache holds, at least
  // kMinRows, at most those of a local buffer.
  void DivideRows() {
    const int64_t summed = SummedElements() / plan_.chunks;
    const int64_t cached = target_.l2_bytes / 2 / (4 * summed);
    int64_t left = std::clamp(cached, kMinRows,
                              std::max(kMinRows, kMaxLocalBytes / 8 / summed));
    left = std::min(left, std::max<int64_t>(1, kMaxLocalBytes / 4 / summed));
    if (plan_.row_axis >= 0) {
      TileRange& full = plan_.rows[0];
      const int64_t tiles =
          LargestDivisor(full.tiles, std::max<int64_t>(1, left / full.size));
      plan_.row_blocks = full.tiles / tiles;
      left /= tiles * full.size;
    }
    int64_t tasks = plan_.row_blocks * plan_.chunks;
    for (size_t i = rows_.size(); i-- > 0;) {
      if (rows_[i] == plan_.row_axis) continue;
      const int64_t inner =
          LargestDivisor(Extent(rows_[i]), std::max<int64_t>(1, left));
      plan_.other_rows.insert(plan_.other_rows.begin(),
                              {rows_[i], Extent(rows_[i]) / inner, inner});
      left /= Extent(rows_[i]);
      tasks *= Extent(rows_[i]) / inner;
    }
    for (const int axis : plan_.batch) tasks *= Extent(axis);
    plan_.columns_in_grid = tasks < kTasksPerThread * target_.threads;
  }

  const LoopNest& nest_;
  const passes::Contraction& contraction_;
  const ir::Target& target_;
  Index of_row_;
  Index of_column_;
  std::vector<int> rows_;  // all axes of rows
  ContractionSchedule plan_;
};

}  // namespace

ContractionSchedule ScheduleContraction(const LoopNest& nest,
                                        const passes::Contraction& contraction,
                                        const Access& row_factor,
                                        const Access& column_factor,
                                        int64_t lanes,
                                        const ir::Target& target) {
  return Planner(nest, contraction, row_factor, column_factor, target)
      .Run(lanes);
}

}  // namespace fusor::codegen
