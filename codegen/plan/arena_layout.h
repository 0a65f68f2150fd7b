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
  kGradientArena  // of plans with collectives alone
};

// A plan whose buffers know their arena but not yet their place in it.
struct ArenaLayout {
  Plan plan;
  // Parallel to plan.buffers: the buffer in whose place it lies - an input's,
  // or a collective's operand - or -1.
  std::vector<int> slot;
  // Parallel to plan.buffers: its group, or -1.
  std::vector<int> group_of;
  // Buffers that must be consecutive, in this order.
  std::vector<std::vector<int>> groups;

  int AddBuffer(Buffer buffer, int in_slot = -1);
};

// Gives every buffer its offset and every arena its size: groups first, state
// by role and group or as the session's layout says, temporary buffers by
// PlanMemory from the steps that use them. Throws kOutOfMemory above the limit.
void LayOutArenas(ArenaLayout& draft, const PlanOptions& options);

// The place of the state input of that name; throws kGraph when the layout has
// none or another type.
const StateLayout::Entry& FindState(const StateLayout& layout,
                                    const std::string& name,
                                    const ir::TensorType& type);

}  // namespace fusor::codegen
