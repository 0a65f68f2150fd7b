#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "codegen/plan/plan.h"

namespace fusor::codegen {

// Live buffers of the temporary arena over the schedule.
struct MemoryTimeline {
  // A temporary buffer that some step uses. Excludes buffers with
  // members; these are buffers themselves.
  struct Entry {
    int buffer;
    LiveRange life;
  };
  std::vector<Entry> entries;  // by buffer
  // Live bytes during each step. In-place aliases count once.
  std::vector<int64_t> live;
  int peak_step = -1;  // first step with the most live bytes; -1 without steps

  // Returns indices in `entries` of the buffers live at a step, largest first.
  std::vector<size_t> LiveAt(const Plan& plan, int step) const;
};

MemoryTimeline TimelineOf(const Plan& plan);

// Returns the JSON format of page_memory.js: {name, peak, bound, live, steps,
// buffers: [{name, loc, source, bytes, offset, first, last}]}.
nlohmann::json TimelineView(const Plan& plan, const std::string& name);

}  // namespace fusor::codegen
