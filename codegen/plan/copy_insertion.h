#pragma once

// Inserts copies of values that cannot be where their readers need them, and
// decides which values share a buffer. Afterwards every node, except views and
// constants, is one step of the plan. Similar to XLA's CopyInsertion.

#include <span>
#include <unordered_map>
#include <vector>

#include "codegen/lower/lower.h"
#include "codegen/plan/memory_planner.h"
#include "ir/graph.h"

namespace fusor::codegen {

// Where the buffer of a value is.
struct BufferPlacement {
  PlanArena arena = kTemporaryArena;
  // The input, or the operand of an all_reduce, whose buffer the value
  // overwrites. Null: none.
  ir::Value* overwrites = nullptr;
};

struct BufferConstraints {
  // The nodes that are steps, in the order in which they run.
  std::vector<const ir::Node*> steps;
  // Has an entry for each input, and for each result that is not a view.
  std::unordered_map<const ir::Value*, BufferPlacement> placements;
  // Values whose buffers must be contiguous, in this order. A value is in at
  // most one list.
  std::vector<std::vector<const ir::Value*>> contiguous;
};

// Inserts a `copy` node of the same type
//   - before a kernel that reads values as one span that cannot be contiguous
//     (LoweredKernel::operand_spans);
//   - before a collective that would overwrite what other nodes read, or that
//     reads a value outside the gradient arena;
//   - after the last step, if an output is new state that no step could write
//     over the old, or old state that an update overwrites.
// The nodes run in the order of `order`, which has all nodes of the graph.
// Erases views that become unused. `state` is the session's state layout, or
// null if the plan may choose one. Throws kGraph if the layout lacks an input,
// kInternal if the layout divides the state that a kernel updates as one span.
BufferConstraints InsertCopies(ir::Graph& graph,
                               std::span<ir::Node* const> order,
                               const LoweredNodes& lowered,
                               const StateLayout* state);

}  // namespace fusor::codegen
