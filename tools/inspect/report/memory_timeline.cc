#include "tools/inspect/report/memory_timeline.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace fusor::codegen {
namespace {

using nlohmann::json;

// Bytes that the pieces of one arena cover together.
int64_t CoveredBytes(std::vector<std::pair<int64_t, int64_t>> pieces) {
  std::sort(pieces.begin(), pieces.end());
  int64_t covered = 0;
  int64_t end = 0;
  for (const auto& [first, last] : pieces) {
    covered += std::max<int64_t>(0, last - std::max(first, end));
    end = std::max(end, last);
  }
  return covered;
}

}  // namespace

MemoryTimeline TimelineOf(const Plan& plan) {
  MemoryTimeline timeline;
  const std::vector<LiveRange> lives = LiveRanges(plan);
  std::vector<std::vector<std::pair<int64_t, int64_t>>> pieces(
      plan.steps.size());
  for (size_t b = 0; b < plan.buffers.size(); ++b) {
    const Buffer& buffer = plan.buffers[b];
    if (plan.arenas[buffer.arena].kind != ArenaKind::kTemporary ||
        !buffer.members.empty() || lives[b].first < 0) {
      continue;
    }
    timeline.entries.push_back({static_cast<int>(b), lives[b]});
    for (int s = lives[b].first; s <= lives[b].last; ++s) {
      pieces[s].emplace_back(buffer.offset,
                             buffer.offset + PadToAlignment(buffer.bytes));
    }
  }
  for (auto& at_step : pieces) {
    timeline.live.push_back(CoveredBytes(std::move(at_step)));
  }
  const auto peak =
      std::max_element(timeline.live.begin(), timeline.live.end());
  if (peak != timeline.live.end()) {
    timeline.peak_step = static_cast<int>(peak - timeline.live.begin());
  }
  return timeline;
}

std::vector<size_t> MemoryTimeline::LiveAt(const Plan& plan, int step) const {
  std::vector<size_t> found;
  for (size_t i = 0; i < entries.size(); ++i) {
    const LiveRange& life = entries[i].life;
    if (life.first <= step && step <= life.last) found.push_back(i);
  }
  std::stable_sort(found.begin(), found.end(), [&](size_t a, size_t b) {
    return plan.buffers[entries[a].buffer].bytes >
           plan.buffers[entries[b].buffer].bytes;
  });
  return found;
}

json TimelineView(const Plan& plan, const std::string& name) {
  const MemoryTimeline timeline = TimelineOf(plan);
  json steps = json::array();
  for (const Step& step : plan.steps) {
    steps.push_back(step.op_class + " " + ToString(step.location));
  }
  json buffers = json::array();
  for (const MemoryTimeline::Entry& entry : timeline.entries) {
    const Buffer& buffer = plan.buffers[entry.buffer];
    buffers.push_back({{"name", buffer.name},
                       {"loc", buffer.location.path},
                       {"source", ToString(buffer.location.source)},
                       {"bytes", buffer.bytes},
                       {"offset", buffer.offset},
                       {"first", entry.life.first},
                       {"last", entry.life.last}});
  }
  return {{"name", name},
          {"peak", plan.peak_bytes},
          {"bound", plan.lower_bound_bytes},
          {"live", timeline.live},
          {"steps", std::move(steps)},
          {"buffers", std::move(buffers)}};
}

}  // namespace fusor::codegen
