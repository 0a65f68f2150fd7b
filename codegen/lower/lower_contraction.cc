#include <algorithm>

#include "codegen/kernel/access_analysis.h"
#include "codegen/lower/contraction_emitter.h"
#include "codegen/lower/contraction_schedule.h"
#include "codegen/lower/lower.h"
#include "ir/support/error.h"

namespace fusor::codegen {
namespace {

using ir::Value;

// Summed indices whose statements are unrolled.
constexpr int64_t kUnrolled = 8;
// Tiles that load elements at this distance, or a larger one, use few elements
// per cache line, and many pages.
constexpr int64_t kDistantBytes = 1024;

// Kernel axes of the current tile; -1: none.
struct TileAxes {
  int column_tile = -1;
  int row = -1;
  int group = -1;
  int lane = -1;
};

class ContractionLowering : ContractionEmitter {
 public:
  ContractionLowering(const ir::Graph& body, const ir::Target& target,
                      bool eager)
      : ContractionEmitter(body, target, eager) {}

  LoweredKernel Lower();

 private:
  // An axis of the nest along which a task reads the row factor.
  struct RowPart {
    int axis;
    int64_t extent;      // in the task
    int64_t stride = 0;  // in the packed rows
  };

  int64_t VectorExtent(size_t columns) const;

  bool IsDistant(int factor) const;
  bool MustPack() const;
  void EmitPacking(size_t columns);
  void EmitRowPacking(size_t rows);
  std::vector<RowPart> RowParts(size_t rows) const;
  Index PackedRowIndex() const;
  void EmitProducts(size_t rows, std::span<const size_t> columns);
  void EmitColumns(size_t rows, size_t columns);
  void EmitRows(size_t rows);
  void EmitSum();
  void EmitContract(int axis);
  void AddColumnParts(size_t columns, int column_tile);
  Index PackedIndex(size_t columns) const;

  ContractionSchedule plan_;
  std::vector<int> packed_;  // buffers of the column factor, by columns
  // The task's part of the row factor: a local buffer, or -1, its axes, and the
  // parts that only select the task.
  int packed_rows_ = -1;
  std::vector<RowPart> row_parts_;
  Parts task_parts_;

  // State of the current phase.
  TileAxes tile_;
  size_t columns_ = 0;
  int chunk_ = -1;
  int sum_ = -1;  // tile registers
  int row_values_ = -1;
  int column_values_ = -1;
};

// Returns whether reading the value costs more than a load.
bool IsComputed(const Value& value) {
  return value.producer() != nullptr || ir::DTypeSize(value.type().dtype) < 4;
}

// Returns whether a map skips elements. Each cache line then has few elements
// to load, once per tile of columns.
bool IsStrided(const ir::IndexMap& map) {
  return std::any_of(map.begin(), map.end(),
                     [](const ir::DimMap& dim) { return dim.scale != 1; });
}

LoweredKernel ContractionLowering::Lower() {
  FUSOR_ASSERT(contraction_.column_sums.empty(), "column sums on a CPU");
  plan_ = ScheduleContraction(
      *nest_, contraction_, FactorAccess(row_factor()),
      FactorAccess(contraction_.column_factor),
      target_.vector_bytes / std::max<int64_t>(4, ir::DTypeSize(dtype_)),
      target_);
  builder_.SetLanes(plan_.lanes, 0);
  if (MustPack()) {
    for (size_t c = 0; c < plan_.columns.size(); ++c) EmitPacking(c);
  }
  if (plan_.chunks > 1) AddPartialBuffer(plan_.chunks);
  std::vector<size_t> columns(plan_.columns.size());
  for (size_t c = 0; c < columns.size(); ++c) columns[c] = c;
  for (size_t r = 0; r < plan_.rows.size(); ++r) {
    if (!plan_.columns_in_grid) {
      EmitProducts(r, columns);
      continue;
    }
    for (const size_t& c : columns) EmitProducts(r, {&c, 1});
  }
  if (plan_.chunks > 1) EmitCombination(plan_.vector_axis);
  return Build();
}

// Returns the lanes of a vector that are used.
int64_t ContractionLowering::VectorExtent(size_t columns) const {
  const bool partial = plan_.partial > 0 && columns + 1 == plan_.columns.size();
  return partial ? plan_.partial
                 : std::min(plan_.lanes, Extent(plan_.vector_axis));
}

// --- Axes --------------------------------------------------------------------

void ContractionLowering::AddColumnParts(size_t columns, int column_tile) {
  const TileRange& range = plan_.columns[columns];
  columns_ = columns;
  tile_.column_tile = column_tile;
  const bool split = plan_.group_axis == plan_.vector_axis;
  const int64_t unit = split ? plan_.lanes : 1;
  if (plan_.group_axis < 0) {
    tile_.group = builder_.AddAxis("group", 1);
  } else {
    std::vector<AxisPart>& parts = parts_[plan_.group_axis];
    parts = {{-1, range.first * unit}};
    if (column_tile >= 0) parts.push_back({column_tile, range.size * unit});
    tile_.group = AddPart(plan_.group_axis, "group", range.size, unit);
  }
  if (!split) parts_[plan_.vector_axis].clear();
  tile_.lane = AddPart(plan_.vector_axis, "lane", VectorExtent(columns), 1,
                       AxisKind::kVector);
}

// --- Packing -----------------------------------------------------------------

// Returns whether consecutive summed elements of the factor are far apart.
bool ContractionLowering::IsDistant(int factor) const {
  if (plan_.summed.empty()) return false;
  return CoefficientOf(FactorIndex(factor), plan_.summed.back()) *
             ir::DTypeSize(node().input(factor)->type().dtype) >=
         kDistantBytes;
}

// Returns whether the column factor is first stored in the order in which tiles
// read it: if vectors are not contiguous, or if many tiles would compute it or
// load distant elements.
bool ContractionLowering::MustPack() const {
  const int column = contraction_.column_factor;
  if (CoefficientOf(FactorIndex(column), plan_.vector_axis) != 1) return true;
  int64_t tiles = 1;
  for (const TileRange& range : plan_.rows) tiles += range.tiles;
  return tiles > 2 && (IsComputed(*node().input(column)) || IsDistant(column));
}

// Returns the element of the packed column factor at the present indices:
// [batch and other columns][tile][summed][group][lane].
Index ContractionLowering::PackedIndex(size_t columns) const {
  const TileRange& range = plan_.columns[columns];
  Index index;
  int64_t stride = 1;
  const auto add_axis = [&](int axis, int64_t extent) {
    if (axis >= 0) index.terms.push_back({axis, stride});
    stride *= extent;
  };
  const auto add_parts = [&](int nest_axis) {
    AddTerms(index, parts_[nest_axis], stride);
    stride *= Extent(nest_axis);
  };
  add_axis(tile_.lane, VectorExtent(columns));
  add_axis(tile_.group, range.size);
  for (size_t i = plan_.summed.size(); i-- > 0;) add_parts(plan_.summed[i]);
  add_axis(tile_.column_tile, range.tiles);
  for (const int axis : plan_.other_columns) add_parts(axis);
  for (const int axis : plan_.batch) add_parts(axis);
  return index;
}

// Returns the axes along which a task reads the row factor, in the order in
// which it is stored: a task of many distant rows would read parts of cache
// lines.
std::vector<ContractionLowering::RowPart> ContractionLowering::RowParts(
    size_t rows) const {
  const Index index = FactorIndex(row_factor());
  std::vector<RowPart> parts;
  for (const SplitAxis& split : plan_.other_rows) {
    parts.push_back({split.axis, split.inner});
  }
  if (plan_.row_axis >= 0) {
    const TileRange& range = plan_.rows[rows];
    parts.push_back({plan_.row_axis, range.size * range.tiles /
                                         (rows == 0 ? plan_.row_blocks : 1)});
  }
  for (size_t i = 0; i < plan_.summed.size(); ++i) {
    parts.push_back({plan_.summed[i],
                     Extent(plan_.summed[i]) / (i == 0 ? plan_.chunks : 1)});
  }
  std::stable_sort(
      parts.begin(), parts.end(), [&](const RowPart& a, const RowPart& b) {
        return CoefficientOf(index, a.axis) > CoefficientOf(index, b.axis);
      });
  int64_t stride = 1;
  for (size_t i = parts.size(); i-- > 0;) {
    parts[i].stride = stride;
    stride *= parts[i].extent;
  }
  return parts;
}

// Emits loops that compute the task's part of the row factor, or gather its
// elements if they are far apart, if it fits in a local buffer.
void ContractionLowering::EmitRowPacking(size_t rows) {
  packed_rows_ = -1;
  const int row = row_factor();
  if (!IsComputed(*node().input(row)) && !IsDistant(row) &&
      !IsStrided(contraction_.factors[row])) {
    return;
  }
  row_parts_ = RowParts(rows);
  const int64_t elements =
      row_parts_.empty() ? 1 : row_parts_[0].stride * row_parts_[0].extent;
  if (elements * ir::DTypeSize(dtype_) > kMaxLocalBytes) return;
  packed_rows_ =
      builder_.AddBuffer("rows", dtype_, elements, BufferUse::kLocal);
  task_parts_ = parts_;
  std::vector<KernelBuilder::Scope> loops;
  Index index;
  for (const RowPart& part : row_parts_) {
    const bool vector = &part == &row_parts_.back();
    const int axis = AddPart(part.axis, nest_->axes()[part.axis].name,
                             part.extent, 1, VectorIf(vector));
    loops.push_back(builder_.BeginLoop(axis));
    index.terms.push_back({axis, part.stride});
  }
  builder_.Store(packed_rows_, std::move(index), EmitFactor(row));
  parts_ = task_parts_;
}

// Returns the element of the packed rows at the present indices.
Index ContractionLowering::PackedRowIndex() const {
  Index index;
  for (const RowPart& part : row_parts_) {
    const std::vector<AxisPart>& parts = parts_[part.axis];
    const size_t task = task_parts_[part.axis].size();
    AddTerms(index, std::span(parts).subspan(task), part.stride);
  }
  return index;
}

void ContractionLowering::EmitPacking(size_t columns) {
  const TileRange& range = plan_.columns[columns];
  int64_t elements = range.tiles * range.size * VectorExtent(columns);
  for (const std::vector<int>* axes :
       {&plan_.summed, &plan_.other_columns, &plan_.batch}) {
    for (const int axis : *axes) elements *= Extent(axis);
  }
  packed_.push_back(
      builder_.AddBuffer("packed", dtype_, elements, BufferUse::kScratch));
  parts_.assign(nest_->axes().size(), {});
  std::vector<int> grid;
  for (const std::vector<int>* axes : {&plan_.batch, &plan_.other_columns}) {
    for (const int axis : *axes) grid.push_back(AddPart(axis, Extent(axis)));
  }
  int column_tile = -1;
  if (range.tiles > 1) {
    column_tile = builder_.AddAxis("column_tile", range.tiles);
    grid.push_back(column_tile);
  }
  const auto phase = builder_.BeginPhase(grid);
  AddColumnParts(columns, column_tile);
  std::vector<KernelBuilder::Scope> loops;
  for (const int axis : plan_.summed) {
    loops.push_back(builder_.BeginLoop(AddPart(axis, Extent(axis))));
  }
  loops.push_back(builder_.BeginLoop(tile_.group));
  loops.push_back(builder_.BeginLoop(tile_.lane));
  builder_.Store(packed_.back(), PackedIndex(columns),
                 EmitFactor(contraction_.column_factor));
}

// --- Products ----------------------------------------------------------------

void ContractionLowering::EmitProducts(size_t rows,
                                       std::span<const size_t> columns) {
  const TileRange& range = plan_.rows[rows];
  parts_.assign(nest_->axes().size(), {});
  std::vector<int> grid;
  chunk_ = -1;
  if (plan_.chunks > 1) {
    const int axis = plan_.summed[0];
    chunk_ = AddPart(axis, "chunk", plan_.chunks, Extent(axis) / plan_.chunks);
    grid.push_back(chunk_);
  }
  for (const int axis : plan_.batch) {
    grid.push_back(AddPart(axis, Extent(axis)));
  }
  for (const SplitAxis& split : plan_.other_rows) {
    if (split.outer > 1) {
      grid.push_back(AddPart(split.axis, split.outer, split.inner));
    }
  }
  if (plan_.row_axis >= 0) {
    parts_[plan_.row_axis].push_back({-1, range.first});
    if (rows == 0 && plan_.row_blocks > 1) {
      grid.push_back(AddPart(plan_.row_axis, "row_block", plan_.row_blocks,
                             range.tiles / plan_.row_blocks * range.size));
    }
  }
  int column_tile = -1;
  if (plan_.columns_in_grid) {
    for (const int axis : plan_.other_columns) {
      grid.push_back(AddPart(axis, Extent(axis)));
    }
    const int64_t tiles = plan_.columns[columns[0]].tiles;
    if (tiles > 1) {
      column_tile = builder_.AddAxis("column_tile", tiles);
      grid.push_back(column_tile);
    }
  }
  const auto phase = builder_.BeginPhase(grid);
  EmitRowPacking(rows);
  if (plan_.columns_in_grid) {
    AddColumnParts(columns[0], column_tile);
    return EmitRows(rows);
  }
  std::vector<KernelBuilder::Scope> loops;
  for (const int axis : plan_.other_columns) {
    loops.push_back(builder_.BeginLoop(AddPart(axis, Extent(axis))));
  }
  for (const size_t c : columns) EmitColumns(rows, c);
}

void ContractionLowering::EmitColumns(size_t rows, size_t columns) {
  const int64_t tiles = plan_.columns[columns].tiles;
  if (tiles == 1) {
    AddColumnParts(columns, -1);
    return EmitRows(rows);
  }
  const int column_tile = builder_.AddAxis("column_tile", tiles);
  const auto loop = builder_.BeginLoop(column_tile);
  AddColumnParts(columns, column_tile);
  EmitRows(rows);
}

// Emits the tiles of a task in one tile of columns.
void ContractionLowering::EmitRows(size_t rows) {
  const Parts outer = parts_;
  const TileRange& range = plan_.rows[rows];
  std::vector<KernelBuilder::Scope> loops;
  loops.push_back(builder_.BeginLoop(tile_.lane));
  for (const SplitAxis& split : plan_.other_rows) {
    if (split.inner > 1) {
      loops.push_back(builder_.BeginLoop(AddPart(split.axis, split.inner)));
    }
  }
  const int64_t tiles =
      rows == 0 ? range.tiles / plan_.row_blocks : range.tiles;
  if (tiles > 1) {
    loops.push_back(builder_.BeginLoop(
        AddPart(plan_.row_axis, "row_tile", tiles, range.size)));
  }
  tile_.row = plan_.row_axis < 0
                  ? builder_.AddAxis("row", 1)
                  : AddPart(plan_.row_axis, "row", range.size, 1);
  sum_ = builder_.Tile(dtype_, {tile_.row, tile_.group}, true);
  row_values_ = builder_.Tile(dtype_, {tile_.row}, false);
  column_values_ = builder_.Tile(dtype_, {tile_.group}, true);
  builder_.ClearTile(sum_);
  EmitSum();
  const auto group = builder_.BeginLoop(tile_.group);
  const auto row = builder_.BeginLoop(tile_.row);
  if (plan_.chunks > 1) {
    StorePartial(chunk_, sum_);
  } else {
    EmitResults(sum_);
  }
  parts_ = outer;
}

// Emits the loops along the summed axes. Unrolls the fastest one.
void ContractionLowering::EmitSum() {
  const Parts outer = parts_;
  std::vector<KernelBuilder::Scope> loops;
  int64_t last = 1;  // extent of the fastest one
  for (size_t i = 0; i < plan_.summed.size(); ++i) {
    const int axis = plan_.summed[i];
    const int64_t extent = Extent(axis) / (i == 0 ? plan_.chunks : 1);
    if (i + 1 == plan_.summed.size()) {
      last = extent;
    } else if (extent > 1) {
      loops.push_back(builder_.BeginLoop(AddPart(axis, extent)));
    }
  }
  if (plan_.summed.empty()) {
    EmitContract(builder_.AddAxis("k", 1));
    return;
  }
  const int axis = plan_.summed.back();
  const Parts inner = parts_;
  const int64_t whole = last / kUnrolled;
  if (whole > 0) {
    std::vector<KernelBuilder::Scope> loop;
    if (whole > 1) {
      loop.push_back(builder_.BeginLoop(AddPart(axis, whole, kUnrolled)));
    }
    EmitContract(AddPart(axis, "k", kUnrolled, 1));
    parts_ = inner;
  }
  if (last % kUnrolled > 0) {
    parts_[axis].push_back({-1, whole * kUnrolled});
    EmitContract(AddPart(axis, "k", last % kUnrolled, 1));
  }
  parts_ = outer;
}

void ContractionLowering::EmitContract(int axis) {
  const auto contract =
      builder_.BeginContract(axis, sum_, row_values_, column_values_);
  {
    const auto row = builder_.BeginLoop(tile_.row);
    builder_.Assign(row_values_,
                    packed_rows_ >= 0
                        ? builder_.Load(packed_rows_, PackedRowIndex())
                        : EmitFactor(row_factor()));
  }
  const auto group = builder_.BeginLoop(tile_.group);
  builder_.Assign(column_values_, packed_.empty()
                                      ? EmitFactor(contraction_.column_factor)
                                      : builder_.Load(packed_[columns_],
                                                      PackedIndex(columns_)));
}

}  // namespace

LoweredKernel LowerContraction(const ir::Graph& body, const ir::Target& target,
                               bool eager) {
  return ContractionLowering(body, target, eager).Lower();
}

}  // namespace fusor::codegen
