#include "tools/inspect/report/memory_page.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "tools/inspect/html/html_page.h"
#include "tools/inspect/html/quantities.h"
#include "tools/inspect/report/memory_timeline.h"

namespace fusor::codegen {
namespace {

using nlohmann::json;

json PeakTable(const Plan& plan) {
  const MemoryTimeline timeline = TimelineOf(plan);
  std::vector<std::vector<json>> rows;
  if (timeline.peak_step >= 0) {
    for (const size_t i : timeline.LiveAt(plan, timeline.peak_step)) {
      const MemoryTimeline::Entry& entry = timeline.entries[i];
      const Buffer& buffer = plan.buffers[entry.buffer];
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

std::string MemoryPage(const Plan& plan, const std::string& title) {
  HtmlPage page;
  page.title = title;
  std::vector<Tile> tiles;
  for (const Arena& arena : plan.arenas) {
    tiles.push_back({arena.name, ShowBytes(arena.bytes), ""});
    if (arena.kind == ArenaKind::kTemporary) {
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

}  // namespace fusor::codegen
