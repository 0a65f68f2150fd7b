#pragma once

// Maps the loop nest of a fusion to the axes of a kernel: grid axes, and loops
// inside each task.

#include <vector>

#include "codegen/kernel/kernel_builder.h"
#include "codegen/lower/loop_nest.h"
#include "ir/target/target.h"

namespace fusor::codegen {

// Numbers are kernel axes; -1: none.
struct LoopSchedule {
  std::vector<std::vector<AxisPart>> parts;  // by axis of the nest
  std::vector<int> grid;                     // a vector axis last
  std::vector<int> loops;                    // inside a task, outermost first
  bool vector_loop = false;                  // the last loop is the vector axis
  bool vector_grid = false;  // the last grid axis is the vector axis
  // Reductions only.
  int64_t kept_elements = 1;  // product of the parallel extents
  int chunk_axis = -1;        // if the reduction is split into chunks
  int row_axis = -1;          // block axis to reduce over
  int combined_loop = -1;     // loop over the chunks' partial results
  int combined_rows = -1;     // block axis over them
  // Only if each GPU block combines the chunks of one output element: the grid
  // of the combining phase, and `parts` in terms of its axes. Partial results
  // of an element are then contiguous, and combined_loop is a vector axis.
  std::vector<int> combined_grid;
  std::vector<std::vector<AxisPart>> combined_parts;
};

// Plans loops without a reduction. Both functions add the axes to the kernel
// and, on a GPU, set its lanes and width. REQUIRES: the kernel has all its
// operands and results as buffers.
LoopSchedule ScheduleMap(const LoopNest& nest, const ir::Target& target,
                         KernelBuilder& builder);

// Plans loops with reductions along the nest's reduction axes. If the parallel
// axes give too few tasks, splits the slowest reduction axis into chunks; a
// separate phase combines their partial results (split reduction).
//
// On a GPU a task is a block. Its lanes run along the fastest axis, its rows
// along the fastest axis of the other kind, parallel or reduction. Rows along a
// reduction axis (row_axis) are reduced through shared memory after the loops.
LoopSchedule ScheduleReduction(const LoopNest& nest, const ir::Target& target,
                               KernelBuilder& builder);

}  // namespace fusor::codegen
