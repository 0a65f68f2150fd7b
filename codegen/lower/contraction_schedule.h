#pragma once

// Divides a contraction into tasks and register tiles.

#include <vector>

#include "codegen/lower/loop_nest.h"
#include "ir/target/target.h"
#include "passes/fusion/contraction.h"

namespace fusor::codegen {

// Consecutive indices of an axis in tiles of `size` indices.
struct TileRange {
  int64_t first = 0;
  int64_t tiles = 1;
  int64_t size = 1;
};

// A serial axis of the nest: the index is outer * inner_extent + inner.
struct SplitAxis {
  int axis;           // of the nest
  int64_t outer = 1;  // extent of the part in the grid
  int64_t inner = 1;  // extent of the part in a task
};

struct ContractionSchedule {
  int64_t lanes = 1;  // of a column vector
  // Axes of the nest that only index the grid: both factors have them.
  std::vector<int> batch;
  // Rows of tiles, along `row_axis`; -1: tiles have one row. All other axes of
  // the row factor.
  int row_axis = -1;
  std::vector<TileRange> rows;
  int64_t row_blocks = 1;  // that the tiles of rows[0] are divided into
  std::vector<SplitAxis> other_rows;
  // The axis of vectors, and that of a tile's groups of vectors: the same, if
  // its extent exceeds the lanes, or another one; -1: one group.
  int vector_axis = -1;
  int group_axis = -1;
  // In units of vectors, along group_axis; then a vector of fewer lanes, if the
  // lanes do not divide the extent of vector_axis.
  std::vector<TileRange> columns;
  int64_t partial = 0;  // lanes of the last vector; 0: it is whole
  std::vector<int> other_columns;
  bool columns_in_grid = false;
  // Summed axes, slowest first. The first has `chunks` parts in the grid, whose
  // sums are combined by a second phase.
  std::vector<int> summed;
  int64_t chunks = 1;
};

// `lanes`: elements of a vector register.
ContractionSchedule ScheduleContraction(const LoopNest& nest,
                                        const passes::Contraction& contraction,
                                        const Access& row_factor,
                                        const Access& column_factor,
                                        int64_t lanes,
                                        const ir::Target& target);

}  // namespace fusor::codegen
