#include "tools/inspect/report/memory_report.h"

#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "ir/io/printer.h"
#include "ir/support/str.h"
#include "tools/inspect/html/html_page.h"

namespace fusor::inspect {

namespace {

using nlohmann::json;

// Returns the bytes covered by the union of the pieces.
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

MemoryTimeline TimelineOf(const codegen::Plan& plan) {
  MemoryTimeline timeline;
  const std::vector<codegen::LiveRange> lives = codegen::LiveRanges(plan);
  std::vector<std::vector<std::pair<int64_t, int64_t>>> pieces(
      plan.steps.size());
  for (size_t b = 0; b < plan.buffers.size(); ++b) {
    const codegen::Buffer& buffer = plan.buffers[b];
    if (plan.arenas[buffer.arena].kind != codegen::ArenaKind::kTemporary ||
        !buffer.members.empty() || lives[b].first < 0) {
      continue;
    }
    timeline.entries.push_back({static_cast<int>(b), lives[b]});
    for (int s = lives[b].first; s <= lives[b].last; ++s) {
      pieces[s].emplace_back(
          buffer.offset, buffer.offset + codegen::PadToAlignment(buffer.bytes));
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

std::vector<size_t> MemoryTimeline::LiveAt(const codegen::Plan& plan,
                                           int step) const {
  std::vector<size_t> found;
  for (size_t i = 0; i < entries.size(); ++i) {
    const codegen::LiveRange& life = entries[i].life;
    if (life.first <= step && step <= life.last) found.push_back(i);
  }
  std::stable_sort(found.begin(), found.end(), [&](size_t a, size_t b) {
    return plan.buffers[entries[a].buffer].bytes >
           plan.buffers[entries[b].buffer].bytes;
  });
  return found;
}

std::vector<PeakBuffer> LiveOnlyAtPeakOf(const codegen::Plan& plan,
                                         const codegen::Plan& other) {
  std::set<std::string> names;
  const MemoryTimeline of_other = TimelineOf(other);
  for (const size_t i : of_other.LiveAt(other, of_other.peak_step)) {
    names.insert(other.buffers[of_other.entries[i].buffer].name);
  }
  const MemoryTimeline timeline = TimelineOf(plan);
  const auto step = [&](int s) {
    return plan.steps[s].op_class + " %" + plan.steps[s].name;
  };
  std::vector<PeakBuffer> found;
  for (const size_t i : timeline.LiveAt(plan, timeline.peak_step)) {
    const MemoryTimeline::Entry& entry = timeline.entries[i];
    const codegen::Buffer& buffer = plan.buffers[entry.buffer];
    if (names.contains(buffer.name)) continue;
    found.push_back({buffer.name, buffer.location.path, buffer.bytes,
                     step(entry.life.first), step(entry.life.last)});
  }
  return found;
}

json TimelineView(const codegen::Plan& plan, const std::string& name) {
  const MemoryTimeline timeline = TimelineOf(plan);
  json steps = json::array();
  for (const codegen::Step& step : plan.steps) {
    steps.push_back(step.op_class + " " + ToString(step.location));
  }
  json buffers = json::array();
  for (const MemoryTimeline::Entry& entry : timeline.entries) {
    const codegen::Buffer& buffer = plan.buffers[entry.buffer];
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

namespace {

// Returns the live range, "s3..s17". "unused": no step uses the buffer.
// "always": it is not in the temporary arena.
std::string Life(const codegen::Plan& plan, const codegen::Buffer& buffer,
                 const codegen::LiveRange& life) {
  if (life.first < 0) return "unused";
  if (plan.arenas[buffer.arena].kind != codegen::ArenaKind::kTemporary)
    return "always";
  return fmt::format("s{}..s{}", life.first, life.last);
}

std::string Line(const codegen::Plan& plan,
                 const std::vector<codegen::LiveRange>& lives, int b) {
  const codegen::Buffer& buffer = plan.buffers[b];
  std::string members;
  if (!buffer.members.empty()) {
    members = " spans " + Join(buffer.members, ", ", [](int member) {
                return fmt::format("b{}", member);
              });
  }
  return fmt::format(
      "  b{:<4} {:>12} bytes at {:>12} of {:<9} {:<12} %{} {}{}{}\n", b,
      buffer.bytes, buffer.offset, plan.arenas[buffer.arena].name,
      Life(plan, buffer, lives[b]), buffer.name, ToString(buffer.type),
      ir::Print(buffer.location), members);
}

std::string StepName(const codegen::Step& step) {
  return fmt::format("%{}{}", step.name, ir::Print(step.location));
}

}  // namespace

std::string MemoryMap(const codegen::Plan& plan) {
  const std::vector<codegen::LiveRange> lives = codegen::LiveRanges(plan);
  const MemoryTimeline timeline = TimelineOf(plan);
  std::string out =
      fmt::format("memory of {} for {}\narenas:\n", plan.name, plan.target);
  for (const codegen::Arena& arena : plan.arenas) {
    out += fmt::format("  {:<9} {:>12} bytes\n", arena.name, arena.bytes);
  }
  out += fmt::format("  the temporary arena needs at least {} bytes\n",
                     plan.lower_bound_bytes);
  if (const int peak = timeline.peak_step; peak >= 0) {
    out += fmt::format("peak: {} bytes live at s{} {}\n", timeline.live[peak],
                       peak, StepName(plan.steps[peak]));
    for (const size_t entry : timeline.LiveAt(plan, peak)) {
      out += Line(plan, lives, timeline.entries[entry].buffer);
    }
  }
  out += "buffers:\n";
  for (size_t b = 0; b < plan.buffers.size(); ++b) {
    out += Line(plan, lives, static_cast<int>(b));
  }
  return out;
}

std::string ScheduleText(const codegen::Plan& plan) {
  const std::vector<int64_t> live_bytes = TimelineOf(plan).live;
  std::string out = fmt::format(
      "schedule of {} for {}\n{:<6} {:>12} {:>12} "
      "{:>14} what\n",
      plan.name, plan.target, "step", "live bytes", "moved bytes", "flops");
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    const codegen::Step& step = plan.steps[s];
    const bool launch = step.kind == codegen::StepKind::kLaunch;
    out += fmt::format(
        "{:<6} {:>12} {:>12} {:>14} {} {}{}{}{}{}\n", fmt::format("s{}", s),
        live_bytes[s], step.bytes, step.flops, step.op_class,
        launch ? plan.kernels[step.index].kernel.name
               : plan.calls[step.index].implementation,
        " " + StepName(step),
        step.stream == 0 ? "" : fmt::format(" on stream {}", step.stream),
        Join(step.waits, "",
             [](int event) { return fmt::format(" waits e{}", event); }),
        step.records < 0 ? "" : fmt::format(" records e{}", step.records));
  }
  return out;
}

namespace {

using nlohmann::json;

json PeakTable(const codegen::Plan& plan) {
  const MemoryTimeline timeline = TimelineOf(plan);
  std::vector<std::vector<json>> rows;
  if (timeline.peak_step >= 0) {
    for (const size_t i : timeline.LiveAt(plan, timeline.peak_step)) {
      const MemoryTimeline::Entry& entry = timeline.entries[i];
      const codegen::Buffer& buffer = plan.buffers[entry.buffer];
      rows.push_back({ShowBytes(buffer.bytes), buffer.name,
                      ToString(buffer.location), ToString(buffer.type),
                      entry.life.first + 1, entry.life.last + 1});
    }
  }
  return TableSection("Live at the peak", "Largest first.",
                      {"bytes", "value", "location", "type", "from step", "to"},
                      std::move(rows), 40);
}

}  // namespace

std::string MemoryPage(const codegen::Plan& plan, const std::string& title) {
  HtmlPage page;
  page.title = title;
  std::vector<Tile> tiles;
  for (const codegen::Arena& arena : plan.arenas) {
    tiles.push_back({arena.name, ShowBytes(arena.bytes), ""});
    if (arena.kind == codegen::ArenaKind::kTemporary) {
      tiles.back().detail = "lower bound " + ShowBytes(plan.lower_bound_bytes);
    }
  }
  page.sections.push_back(TileSection(tiles));
  const json view = TimelineView(plan, plan.name);
  page.sections.push_back(
      MemorySection("Live bytes over the step",
                    "Activations, gradients and workspaces. Hover to see the "
                    "largest buffers.",
                    {view}));
  page.sections.push_back(MemoryMapSection(
      "Memory layout",
      "Each box is a buffer: its width is its live range, its height its size, "
      "its position its offset in the temporary arena. Hover to see its name.",
      view));
  page.sections.push_back(PeakTable(plan));
  return Render(page);
}

}  // namespace fusor::inspect
