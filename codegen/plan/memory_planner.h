#pragma once

// Lays out the arenas of a plan.
//
// PlanMemory packs buffers with known live ranges into one arena. Exact
// minimisation is NP-hard (dynamic storage allocation). The planner tries
// several greedy orders. It then improves them by rounds of re-ordering, the
// best order first, within a fixed work budget. It also reports a lower bound
// of the peak. Follows the multi-heuristic planners of OneFlow
// (intra_job_mem_sharing_util.cpp) and XLA (heap_simulator.cc).

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "codegen/plan/plan.h"

namespace fusor::codegen {

// A buffer that is live from step `first` to step `last`, both inclusive. Two
// items that are live at the same step overlap only if one reuses the storage
// of the other.
struct MemoryItem {
  int64_t bytes = 0;  // > 0
  int first = 0;
  int last = 0;
  // Items whose storage this one may reuse, best first. Only an item of equal
  // padded size whose last step is `first` is reused.
  std::vector<int> in_place;
};

struct MemoryRequest {
  std::vector<MemoryItem> items;
  // Items that must be contiguous in this order, each padded to the alignment.
  // An item is in at most one group.
  std::vector<std::vector<int>> groups;
};

struct MemoryPlan {
  std::vector<int64_t> offsets;  // of the items, multiples of the alignment
  int64_t peak_bytes = 0;
  // Maximum over steps of the live bytes. Shared storage counts once.
  int64_t lower_bound_bytes = 0;
  std::string heuristic;  // that produced the plan, for dumps
};

// Computes offsets. Deterministic. 3,000 items take about 100 ms, and far less
// if one of the first heuristics comes within 0.1 % of the lower bound, where
// the search ends. Throws kInternal on a malformed request.
MemoryPlan PlanMemory(const MemoryRequest& request);

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
// group are contiguous. State follows `state`, or is sorted by role and
// group if `state` is null. PlanMemory places temporary buffers by their live
// ranges. Throws kOutOfMemory above the limit; 0: none.
void LayOutArenas(ArenaLayout& draft, const StateLayout* state,
                  int64_t memory_limit_bytes);

// Returns the entry of the state input `name`. Throws kGraph if the layout has
// no such entry or its type is not `type`.
const StateLayout::Entry& FindState(const StateLayout& layout,
                                    const std::string& name,
                                    const ir::TensorType& type);

}  // namespace fusor::codegen
