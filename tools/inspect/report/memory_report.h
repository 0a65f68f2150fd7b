#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "codegen/plan/plan.h"

namespace fusor::inspect {

// Live buffers of the temporary arena over the schedule.
struct MemoryTimeline {
  // A temporary buffer that some step uses. Excludes buffers with
  // members; these are buffers themselves.
  struct Entry {
    int buffer;
    codegen::LiveRange life;
  };
  std::vector<Entry> entries;  // by buffer
  // Live bytes during each step. In-place aliases count once.
  std::vector<int64_t> live;
  int peak_step = -1;  // first step with the most live bytes; -1 without steps

  // Returns indices in `entries` of the buffers live at a step, largest first.
  std::vector<size_t> LiveAt(const codegen::Plan& plan, int step) const;
};

MemoryTimeline TimelineOf(const codegen::Plan& plan);

// A buffer that is live at a plan's peak.
struct PeakBuffer {
  std::string name;  // of its value
  std::string location;
  int64_t bytes = 0;
  std::string first_step, last_step;  // that use it, as "OP_CLASS %NAME"
};

// Returns the buffers live at the plan's peak whose values are not live at the
// other plan's peak, largest first.
std::vector<PeakBuffer> LiveOnlyAtPeakOf(const codegen::Plan& plan,
                                         const codegen::Plan& other);

// Returns the JSON format of page_memory.js: {name, peak, bound, live, steps,
// buffers: [{name, loc, source, bytes, offset, first, last}]}.
nlohmann::json TimelineView(const codegen::Plan& plan, const std::string& name);

// Returns the memory layout as text: the arenas; the step with the most live
// bytes and its live buffers, largest first; every buffer with arena, offset,
// size, live range, value name and model location.
std::string MemoryMap(const codegen::Plan& plan);

// Returns the steps in order: what they run, live bytes, bytes moved, flops.
std::string ScheduleText(const codegen::Plan& plan);

// Returns a page of a plan's memory: live bytes per step, offset and live range
// of each buffer, and the buffers live at the peak, largest first.
std::string MemoryPage(const codegen::Plan& plan, const std::string& title);

}  // namespace fusor::inspect
