#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "codegen/plan/live_ranges.h"
#include "codegen/plan/plan.h"

namespace fusor::codegen {

// What lies in the temporary arena over the schedule.
struct MemoryTimeline {
  // A temporary buffer that some step uses. Spans are left out: their members
  // are buffers themselves.
  struct Entry {
    int buffer;
    LiveRange life;
  };
  std::vector<Entry> entries;  // by buffer
  // Bytes in use while each step runs; storage that a result takes over from an
  // operand counts once.
  std::vector<int64_t> live;
  int peak_step = -1;  // the first one with the most bytes; -1 without steps

  // Positions in `entries` of those that are live at a step, greatest first.
  std::vector<size_t> LiveAt(const Plan& plan, int step) const;
};

MemoryTimeline TimelineOf(const Plan& plan);

// For page_charts.js: {name, peak, bound, live, steps, buffers: {name, loc,
// bytes, offset, first, last}}.
nlohmann::json TimelineView(const Plan& plan, const std::string& name);

}  // namespace fusor::codegen
