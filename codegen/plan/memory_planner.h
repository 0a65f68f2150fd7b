#pragma once

// Packs buffers with known lifetimes into one arena. Exact minimisation is
// NP-hard (dynamic storage allocation); several greedy orders are raced and,
// the best first, improved by a few rounds of re-ordering, as many as a bound
// on the work allows; the distance to the lower bound is known. After the
// multi-heuristic planners of OneFlow (intra_job_mem_sharing_util.cpp) and XLA
// (heap_simulator.cc).

#include <cstdint>
#include <string>
#include <vector>

namespace fusor::codegen {

// A buffer that holds bytes from step `first` to step `last`, both inclusive.
// Two items that are both live at a step never overlap, unless shared.
struct MemoryItem {
  int64_t bytes = 0;  // > 0
  int first = 0;
  int last = 0;
  // Items whose storage this one may take over, best first. Used only for one
  // of equal size (after padding) that ends at `first`.
  std::vector<int> in_place;
};

struct MemoryRequest {
  std::vector<MemoryItem> items;
  // Items that must lie one after the other in this order, each padded to the
  // alignment. An item is in at most one group.
  std::vector<std::vector<int>> groups;
};

struct MemoryPlan {
  std::vector<int64_t> offsets;  // of the items, multiples of the alignment
  int64_t peak_bytes = 0;
  // Greatest sum over the items live at one step, shared storage counted once.
  int64_t lower_bound_bytes = 0;
  std::string heuristic;  // the winner, for dumps
};

// Deterministic. 3,000 items take some 100 ms, far less when the first
// heuristics meet the lower bound. Throws kInternal on a malformed request.
MemoryPlan PlanMemory(const MemoryRequest& request);

}  // namespace fusor::codegen
