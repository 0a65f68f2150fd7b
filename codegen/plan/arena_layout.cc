#include <algorithm>
#include <tuple>

#include "codegen/plan/memory_planner.h"
#include "ir/support/error.h"
#include "ir/support/str.h"

namespace fusor::codegen {
namespace {

// Assigns contiguous offsets to the buffers of `order`. Returns their total
// bytes.
int64_t PlaceInOrder(Plan& plan, const std::vector<int>& order) {
  int64_t end = 0;
  for (int b : order) {
    plan.buffers[b].offset = end;
    end += PadToAlignment(plan.buffers[b].bytes);
  }
  return end;
}

// Returns `buffers` with every group contiguous, at its first member's
// position.
std::vector<int> GroupedOrder(const ArenaLayout& draft,
                              const std::vector<int>& buffers) {
  std::vector<int> order;
  std::vector<bool> placed(draft.groups.size(), false);
  for (int b : buffers) {
    const int group = draft.group_of[b];
    if (group < 0) {
      order.push_back(b);
    } else if (!placed[group]) {
      placed[group] = true;
      order.insert(order.end(), draft.groups[group].begin(),
                   draft.groups[group].end());
    }
  }
  return order;
}

std::vector<int> BuffersOf(const ArenaLayout& draft, int arena) {
  std::vector<int> buffers;
  for (size_t b = 0; b < draft.plan.buffers.size(); ++b) {
    const Buffer& buffer = draft.plan.buffers[b];
    if (buffer.arena == arena && buffer.members.empty() && draft.slot[b] < 0) {
      buffers.push_back(static_cast<int>(b));
    }
  }
  return buffers;
}

// Sort key: parameters, then optimizer state, then statistics and the rest.
int StateClass(ir::InputRole role) {
  if (ir::IsParameter(role)) return 0;
  return role == ir::InputRole::kOptimizerState ? 1 : 2;
}

void LayOutState(ArenaLayout& draft, const StateLayout* layout) {
  Plan& plan = draft.plan;
  int64_t& bytes = plan.arenas[kStateArena].bytes;
  if (layout != nullptr) {
    for (int b : BuffersOf(draft, kStateArena)) {
      Buffer& buffer = plan.buffers[b];
      buffer.offset = FindState(*layout, buffer.name, buffer.type).offset;
    }
    bytes = layout->bytes;
    return;
  }
  std::vector<std::tuple<int, bool, int, int>> keys;
  for (const PlanInput& input : plan.inputs) {
    if (plan.buffers[input.buffer].arena != kStateArena) continue;
    const int group = draft.group_of[input.buffer];
    keys.emplace_back(StateClass(input.role), group < 0, group, input.buffer);
  }
  std::sort(keys.begin(), keys.end());
  std::vector<int> buffers;
  for (const auto& key : keys) buffers.push_back(std::get<3>(key));
  bytes = PlaceInOrder(plan, GroupedOrder(draft, buffers));
}

// Returns the temporary operands that `result` may overwrite. They are dead
// after the step, and it reads them only through arguments that allow it.
std::vector<int> Donors(const Plan& plan, const Step& step, size_t result,
                        const std::vector<LiveRange>& lives, int now) {
  const auto allowed = [&](size_t operand) {
    const InPlace pair{static_cast<int>(operand), static_cast<int>(result)};
    const std::vector<InPlace>& pairs = InPlaceOf(plan, step);
    return std::find(pairs.begin(), pairs.end(), pair) != pairs.end();
  };
  std::vector<int> donors;
  for (size_t a = 0; a < step.args.size(); ++a) {
    const int candidate = step.args[a];
    if (UseOfArg(plan, step, a) != ArgUse::kRead || !allowed(a) ||
        plan.buffers[candidate].arena != kTemporaryArena ||
        !plan.buffers[candidate].members.empty() ||
        lives[candidate].last != now) {
      continue;
    }
    bool everywhere = true;
    for (size_t other = 0; other < step.args.size(); ++other) {
      const Buffer& buffer = plan.buffers[step.args[other]];
      const bool reads =
          step.args[other] == candidate ||
          std::count(buffer.members.begin(), buffer.members.end(), candidate);
      everywhere = everywhere && (!reads || allowed(other));
    }
    if (everywhere) donors.push_back(candidate);
  }
  return donors;
}

MemoryRequest TemporaryRequest(const ArenaLayout& draft,
                               const std::vector<int>& buffers,
                               const std::vector<LiveRange>& lives) {
  const Plan& plan = draft.plan;
  MemoryRequest request;
  std::vector<int> item_of(plan.buffers.size(), -1);
  for (int b : buffers) {
    item_of[b] = static_cast<int>(request.items.size());
    FUSOR_ASSERT(lives[b].first >= 0, "buffer {} is used by no step",
                 plan.buffers[b].name);
    request.items.push_back(
        {plan.buffers[b].bytes, lives[b].first, lives[b].last, {}});
  }
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    const Step& step = plan.steps[s];
    for (size_t a = 0; a < step.args.size(); ++a) {
      const int item = item_of[step.args[a]];
      if (item < 0 || UseOfArg(plan, step, a) != ArgUse::kWritten) continue;
      for (int donor : Donors(plan, step, a, lives, static_cast<int>(s))) {
        request.items[item].in_place.push_back(item_of[donor]);
      }
    }
  }
  for (const std::vector<int>& group : draft.groups) {
    if (plan.buffers[group[0]].arena != kTemporaryArena) continue;
    request.groups.emplace_back();
    for (int b : group) request.groups.back().push_back(item_of[b]);
  }
  return request;
}

// Lists the five largest buffers at the step with the most live bytes:
// "conv2d_3 (layer1.0.conv1) 1048576 bytes, ...".
std::string LargestAtPeak(const Plan& plan, const std::vector<int>& buffers,
                          const std::vector<LiveRange>& lives) {
  std::vector<int64_t> live(plan.steps.size(), 0);
  for (int b : buffers) {
    for (int s = lives[b].first; s <= lives[b].last; ++s) {
      live[s] += plan.buffers[b].bytes;
    }
  }
  const auto peak = static_cast<int>(
      std::max_element(live.begin(), live.end()) - live.begin());
  std::vector<int> largest;
  for (int b : buffers) {
    if (lives[b].first <= peak && peak <= lives[b].last) largest.push_back(b);
  }
  std::stable_sort(largest.begin(), largest.end(), [&](int a, int b) {
    return plan.buffers[a].bytes > plan.buffers[b].bytes;
  });
  if (largest.size() > 5) largest.resize(5);
  return Join(largest, ", ", [&](int b) {
    const Buffer& buffer = plan.buffers[b];
    return fmt::format("{}{} {} bytes", buffer.name,
                       ir::AtLocation(buffer.location), buffer.bytes);
  });
}

void CheckLimit(const Plan& plan, int64_t limit,
                const std::vector<int>& temporaries,
                const std::vector<LiveRange>& lives) {
  int64_t total = 0;
  for (const Arena& arena : plan.arenas) total += arena.bytes;
  if (limit <= 0 || total <= limit) return;
  FUSOR_CHECK(
      false, kOutOfMemory,
      "plan {} needs {} bytes ({} MiB), {} of them temporary (at least {}), "
      "limit {} ({} MiB); largest at the peak: {}",
      plan.name, total, total >> 20, plan.peak_bytes, plan.lower_bound_bytes,
      limit, limit >> 20,
      temporaries.empty() ? "none" : LargestAtPeak(plan, temporaries, lives));
}

}  // namespace

int ArenaLayout::AddBuffer(Buffer buffer, int in_slot) {
  plan.buffers.push_back(std::move(buffer));
  slot.push_back(in_slot);
  group_of.push_back(-1);
  return static_cast<int>(plan.buffers.size()) - 1;
}

const StateLayout::Entry& FindState(const StateLayout& layout,
                                    const std::string& name,
                                    const ir::TensorType& type) {
  const StateLayout::Entry* entry = layout.Find(name);
  FUSOR_CHECK(entry != nullptr, kGraph,
              "state {}: not part of the session's state", name);
  FUSOR_CHECK(entry->type == type, kGraph,
              "state {}: expected {} as in the session, got {}", name,
              ToString(entry->type), ToString(type));
  return *entry;
}

void LayOutArenas(ArenaLayout& draft, const StateLayout* state,
                  int64_t memory_limit_bytes) {
  Plan& plan = draft.plan;
  LayOutState(draft, state);
  for (int arena : {kInputArena, kOutputArena, kConstantArena}) {
    plan.arenas[arena].bytes =
        PlaceInOrder(plan, GroupedOrder(draft, BuffersOf(draft, arena)));
  }
  if (plan.arenas.size() > kGradientArena) {
    plan.arenas[kGradientArena].bytes = PlaceInOrder(
        plan, GroupedOrder(draft, BuffersOf(draft, kGradientArena)));
  }
  const std::vector<LiveRange> lives = LiveRanges(plan);
  const std::vector<int> temporaries = BuffersOf(draft, kTemporaryArena);
  const MemoryPlan memory =
      PlanMemory(TemporaryRequest(draft, temporaries, lives));
  for (size_t i = 0; i < temporaries.size(); ++i) {
    plan.buffers[temporaries[i]].offset = memory.offsets[i];
  }
  plan.peak_bytes = memory.peak_bytes;
  plan.lower_bound_bytes = memory.lower_bound_bytes;
  plan.arenas[kTemporaryArena].bytes = memory.peak_bytes;
  for (size_t b = 0; b < plan.buffers.size(); ++b) {
    Buffer& buffer = plan.buffers[b];
    if (draft.slot[b] >= 0) buffer.offset = plan.buffers[draft.slot[b]].offset;
  }
  for (Buffer& buffer : plan.buffers) {
    if (buffer.members.empty()) continue;
    buffer.offset = plan.buffers[buffer.members[0]].offset;
  }
  CheckLimit(plan, memory_limit_bytes, temporaries, lives);
}

}  // namespace fusor::codegen
