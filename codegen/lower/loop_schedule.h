#pragma once

// How the loops over a fusion's domain become the axes of a kernel: which of
// them are its grid, and which each task walks.

#include <vector>

#include "codegen/kernel/kernel_ir.h"
#include "codegen/lower/loop_nest.h"
#include "ir/target/target.h"

namespace fusor::codegen {

// A kernel axis whose index * factor is a part of a loop's index.
struct AxisPart {
  int axis;
  int64_t factor;
};

// Numbers are kernel axes; -1 for none.
struct LoopSchedule {
  std::vector<std::vector<AxisPart>> parts;  // of each axis of the nest
  std::vector<int> grid;                     // a vector axis last
  std::vector<int> loops;                    // inside a task
  bool vector_loop = false;                  // the last loop is the vector axis
  bool vector_grid = false;                  // the last grid axis is
  // Of reductions.
  int64_t kept_elements = 1;
  int chunk_axis = -1;     // when split
  int row_axis = -1;       // a block's rows that are reduced
  int combined_loop = -1;  // over partial results of chunks
  int combined_rows = -1;  // the same, a block's rows
  // Where a GPU's blocks combine the chunks of one kept element each: the
  // combination's own grid, and `parts` by its axes. Partial results of an
  // element are then neighbours, and combined_loop is a vector axis. Empty
  // elsewhere.
  std::vector<int> combined_grid;
  std::vector<std::vector<AxisPart>> combined_parts;
};

// Without a reduction. Both add the axes to the kernel, whose buffers are
// there, and set its lanes and a GPU's width.
LoopSchedule ScheduleMap(const LoopNest& nest, const ir::Target& target,
                         Kernel& kernel);

// With reductions along the nest's folded axes. Where the kept axes alone do
// not give enough tasks, these are split along the slowest folded axis into
// chunks, whose partial results are to be combined in a phase of its own.
//
// On a GPU a task is a block. Its lanes lie along the fastest axis, its rows
// along the axis that is the fastest of the others: where that is a folded one,
// they are to be reduced through shared memory after the loops.
LoopSchedule ScheduleReduction(const LoopNest& nest, const ir::Target& target,
                               Kernel& kernel);

}  // namespace fusor::codegen
