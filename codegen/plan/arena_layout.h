#pragma once

#include <map>
#include <string>
#include <vector>

#include "codegen/plan/plan.h"
#include "codegen/plan/plan_options.h"

namespace fusor::codegen {

// Indices of a built plan's arenas.
enum PlanArena : int {
  kStateArena,
  kInputArena,
  kOutputArena,
  kConstantArena,
  kTemporaryArena,
  kGradientArena  // only in plans with collectives
};

// A plan whose buffers have an arena but no offset yet.
struct ArenaLayout {
  Plan plan;
  // Parallel to plan.buffers: the buffer whose offset it shares, which belongs
  // to an input or to an operand of a collective. -1: none.
  std::vector<int> slot;
  // Parallel to plan.buffers: index into groups, or -1.
  std::vector<int> group_of;
  // Buffers that must be contiguous, in this order.
  std::vector<std::vector<int>> groups;

  // Appends a buffer without a group and returns its index.
  int AddBuffer(Buffer buffer, int in_slot = -1);
};

// Assigns an offset to every buffer and a size to every arena. Members of a
// group are contiguous. State follows options.state, or is sorted by role and
// group if that is null. PlanMemory places temporary buffers by their live
// ranges. Throws kOutOfMemory above options.memory_limit_bytes.
void LayOutArenas(ArenaLayout& draft, const PlanOptions& options);

// Returns the entry of the state input `name`. Throws kGraph if the layout has
// no such entry or its type is not `type`.
const StateLayout::Entry& FindState(const StateLayout& layout,
                                    const std::string& name,
                                    const ir::TensorType& type);

}  // namespace fusor::codegen
