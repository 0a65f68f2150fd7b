#include "tools/inspect/report/memory_map.h"

#include <fmt/format.h>

#include <vector>

#include "codegen/plan/plan.h"
#include "ir/io/printer.h"
#include "ir/support/str.h"
#include "tools/inspect/report/memory_timeline.h"

namespace fusor::codegen {
namespace {

// Returns the live range, "s3..s17". "unused": no step uses the buffer.
// "always": it is not in the temporary arena.
std::string Life(const Plan& plan, const Buffer& buffer,
                 const LiveRange& life) {
  if (life.first < 0) return "unused";
  if (plan.arenas[buffer.arena].kind != ArenaKind::kTemporary) return "always";
  return fmt::format("s{}..s{}", life.first, life.last);
}

std::string Line(const Plan& plan, const std::vector<LiveRange>& lives, int b) {
  const Buffer& buffer = plan.buffers[b];
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

std::string StepName(const Step& step) {
  return fmt::format("%{}{}", step.name, ir::Print(step.location));
}

}  // namespace

std::string MemoryMap(const Plan& plan) {
  const std::vector<LiveRange> lives = LiveRanges(plan);
  const MemoryTimeline timeline = TimelineOf(plan);
  std::string out =
      fmt::format("memory of {} for {}\narenas:\n", plan.name, plan.target);
  for (const Arena& arena : plan.arenas) {
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

std::string ScheduleText(const Plan& plan) {
  const std::vector<int64_t> live_bytes = TimelineOf(plan).live;
  std::string out = fmt::format(
      "schedule of {} for {}\n{:<6} {:>12} {:>12} "
      "{:>14} what\n",
      plan.name, plan.target, "step", "live bytes", "moved bytes", "flops");
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    const Step& step = plan.steps[s];
    const bool launch = step.kind == StepKind::kLaunch;
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

}  // namespace fusor::codegen
