#include "codegen/lower/loop_schedule.h"

#include <algorithm>
#include <string>
#include <utility>

#include "codegen/kernel/launch_config.h"

namespace fusor::codegen {
namespace {

// Terms that a serial accumulator may add before it is folded into an outer
// one: bounds the rounding error of long sums.
constexpr int64_t kMaxRun = 512;
// Domain points from which a reduction with too few tasks is split.
constexpr int64_t kSplitElements = 16384;
constexpr int64_t kMaxChunks = 64;
// Of a GPU, which has more threads to wait for, and combines them in parallel.
constexpr int64_t kMaxBlockChunks = 1024;
// Threads of a block that combines chunks, where one block combines those of a
// single kept element and where it combines those of all its lanes. Of the
// latter there are few, so that the time that a block waits for its loads is
// what the combination takes, and one block shall read no more than so many
// partial results.
constexpr int64_t kElementThreads = 128;
constexpr int64_t kCombiningThreads = 512;
constexpr int64_t kCombinedByOne = 16384;
// Elements that a GPU's thread adds up, at least, before a chunk ends.
constexpr int64_t kMinRun = 4;

// Smallest divisor of n that is at least `wanted`, at most `limit`; else the
// largest that is at most both.
int64_t DivisorNear(int64_t n, int64_t wanted, int64_t limit) {
  for (int64_t d = wanted; d <= std::min(n, limit); ++d) {
    if (n % d == 0) return d;
  }
  return LargestDivisor(n, std::min(wanted, limit));
}

class LoopPlanner {
 public:
  LoopPlanner(const LoopNest& nest, const ir::Target& target, Kernel& kernel)
      : nest_(nest), target_(target), kernel_(kernel) {
    kernel_.lanes = static_cast<int>(target.vector_bytes / 4);
  }

  LoopSchedule Map() {
    if (target_.simt) {
      PlanBlockMap();
    } else {
      ScheduleMap();
    }
    return std::move(plan_);
  }

  LoopSchedule Reduction() {
    ScheduleReduction();
    return std::move(plan_);
  }

 private:
  using Parts = std::vector<AxisPart>;

  int AddAxis(const std::string& name, int64_t extent, bool vector = false,
              bool block = false);
  void ScheduleMap();
  void PlanBlockMap();
  int64_t KeptTasks() const;
  void PlanBlocks();
  void PlanKept(size_t nest_axis, bool last, Parts* parts);
  void ScheduleReduction();
  void PlanCombination();
  int64_t MaxChunks(const LoopAxis& axis, bool last) const;
  int64_t Chunks(int64_t extent, int64_t wanted, int64_t limit) const;
  void PlanFolded(size_t nest_axis, bool first, bool last, Parts* parts);

  const LoopNest& nest_;
  const ir::Target& target_;
  Kernel& kernel_;
  LoopSchedule plan_;
  int64_t kept_rows_ = 1;  // a block's rows that are not reduced
};

int LoopPlanner::AddAxis(const std::string& name, int64_t extent, bool vector,
                         bool block) {
  kernel_.axes.push_back({name, extent, vector, block});
  return static_cast<int>(kernel_.axes.size()) - 1;
}

// No reduction: as many of the slowest axes as it takes to occupy all threads
// form the grid; the fastest is the vector axis, inside the task when possible
// so that what the slower axes determine is loaded once.
void LoopPlanner::ScheduleMap() {
  const std::vector<LoopAxis>& axes = nest_.axes();
  std::vector<Parts> parts(axes.size());
  int64_t slower = 1;
  for (size_t i = 0; i + 1 < axes.size(); ++i) slower *= axes[i].extent;
  plan_.vector_loop = slower >= 2 * target_.threads;
  plan_.vector_grid = !plan_.vector_loop && !axes.empty();
  int64_t tasks = 1;
  for (size_t i = 0; i < axes.size(); ++i) {
    const bool last = i + 1 == axes.size();
    const int axis = AddAxis(axes[i].name, axes[i].extent, last);
    parts[i] = {{axis, 1}};
    const bool in_grid =
        !plan_.vector_loop || (!last && tasks < 4 * target_.threads);
    (in_grid ? plan_.grid : plan_.loops).push_back(axis);
    if (in_grid) tasks *= axes[i].extent;
  }
  plan_.parts = std::move(parts);
}

// No reduction, on a GPU: the fastest axis is the vector axis, the one before
// it gives the block its rows. What is left of that one is walked in steps of
// the whole grid, as often as leaves enough blocks to fill the device, so that
// what it does not determine is loaded once.
void LoopPlanner::PlanBlockMap() {
  const std::vector<LoopAxis>& axes = nest_.axes();
  std::vector<Parts> parts(axes.size());
  kernel_.width = ThreadWidth(kernel_.buffers);
  const int64_t fastest = axes.empty() ? 1 : axes.back().extent;
  kernel_.lanes = static_cast<int>(
      LanesFor(fastest, kernel_.width, kernel_.width * kBlockThreads));
  plan_.vector_grid = !axes.empty();
  int64_t rows = 1;
  int64_t tasks = (fastest + kernel_.lanes - 1) / kernel_.lanes;
  for (size_t i = 0; i + 1 < axes.size(); ++i) tasks *= axes[i].extent;
  for (size_t i = 0; i < axes.size(); ++i) {
    const bool last = i + 1 == axes.size();
    if (i + 2 != axes.size()) {
      plan_.grid.push_back(AddAxis(axes[i].name, axes[i].extent, last));
      parts[i] = {{plan_.grid.back(), 1}};
      continue;
    }
    rows = LargestDivisor(axes[i].extent,
                          kBlockThreads * kernel_.width / kernel_.lanes);
    const int64_t enough = kBlocksPerMultiprocessor * target_.threads;
    const int64_t turns =
        LargestDivisor(axes[i].extent / rows, tasks / rows / enough);
    const int64_t outer = axes[i].extent / rows / turns;
    if (turns > 1) {
      plan_.loops.push_back(AddAxis(axes[i].name + "_turn", turns));
      parts[i].push_back({plan_.loops.back(), outer * rows});
    }
    plan_.grid.push_back(AddAxis(axes[i].name, outer));
    parts[i].push_back({plan_.grid.back(), rows});
    plan_.grid.push_back(AddAxis(axes[i].name + "_row", rows, false, true));
    parts[i].push_back({plan_.grid.back(), 1});
  }
  plan_.parts = std::move(parts);
}

int64_t LoopPlanner::KeptTasks() const {
  int64_t tasks = 1;
  for (int axis : plan_.grid) {
    const Axis& a = kernel_.axes[axis];
    if (a.block) continue;
    tasks *=
        a.vector ? (a.extent + kernel_.lanes - 1) / kernel_.lanes : a.extent;
  }
  return tasks;
}

// Of a reduction on a GPU: lanes by the extent of the fastest axis; rows that
// are kept when that one is folded and enough blocks remain without them.
void LoopPlanner::PlanBlocks() {
  const std::vector<LoopAxis>& axes = nest_.axes();
  const int fastest = nest_.fastest();
  const bool across = fastest >= 0 && axes[fastest].folded;
  const int64_t extent = fastest < 0 ? 1 : axes[fastest].extent;
  kernel_.lanes = static_cast<int>(
      LanesFor(extent, 1, across ? kBlockElements : kBlockElements / kMinRun));
  kernel_.width = std::min(ThreadWidth(kernel_.buffers), kernel_.lanes);
  int64_t kept = 1;
  int64_t last = 1;
  for (const LoopAxis& axis : axes) {
    if (axis.folded) continue;
    kept *= axis.extent;
    last = axis.extent;
  }
  const int64_t most =
      std::min({kBlockThreads, kBlockElements / kernel_.lanes,
                std::max<int64_t>(kept / (2 * target_.threads), 1)});
  if (across) kept_rows_ = LargestDivisor(last, most);
}

void LoopPlanner::PlanKept(size_t nest_axis, bool last, Parts* parts) {
  const LoopAxis& axis = nest_.axes()[nest_axis];
  const bool vector = static_cast<int>(nest_axis) == nest_.fastest();
  const int64_t rows = last && !vector ? kept_rows_ : 1;
  plan_.grid.push_back(AddAxis(axis.name, axis.extent / rows, vector));
  parts->push_back({plan_.grid.back(), rows});
  if (rows > 1) {
    plan_.grid.push_back(AddAxis(axis.name + "_row", rows, false, true));
    parts->push_back({plan_.grid.back(), 1});
  }
  plan_.vector_grid |= vector;
  plan_.kept_elements *= axis.extent;
}

void LoopPlanner::ScheduleReduction() {
  const std::vector<LoopAxis>& axes = nest_.axes();
  std::vector<Parts> parts(axes.size());
  std::vector<size_t> folded;
  if (target_.simt) PlanBlocks();
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i].folded) {
      folded.push_back(i);
      continue;
    }
    const bool last = i + 1 == axes.size() || axes[i + 1].folded;
    PlanKept(i, last, &parts[i]);
  }
  for (size_t j = 0; j < folded.size(); ++j) {
    PlanFolded(folded[j], j == 0, j + 1 == folded.size(), &parts[folded[j]]);
  }
  plan_.parts = std::move(parts);
  if (plan_.chunk_axis >= 0) PlanCombination();
}

// Partial results of chunks are combined one after the other, those of all
// reductions side by side. On a GPU a block's rows share them; where many
// chunks meet a kept vector axis, each kept element gets a block of its own.
void LoopPlanner::PlanCombination() {
  const int64_t chunks = kernel_.axes[plan_.chunk_axis].extent;
  plan_.combined_loop = plan_.chunk_axis;
  if (!target_.simt || kept_rows_ > 1) return;
  const int64_t across = plan_.vector_grid ? kernel_.lanes / kernel_.width : 1;
  const bool single =
      plan_.vector_grid && chunks * kernel_.lanes > kCombinedByOne;
  const int64_t most =
      single ? std::min(kElementThreads / across, chunks / kernel_.lanes)
             : kCombiningThreads / across;
  const int64_t rows = LargestDivisor(chunks, std::max<int64_t>(most, 1));
  plan_.combined_loop = AddAxis("chunk", chunks / rows, single);
  plan_.combined_rows = AddAxis("chunk_row", rows, false, true);
  if (!single) return;
  plan_.combined_parts = plan_.parts;
  for (Parts& parts : plan_.combined_parts) {
    for (AxisPart& part : parts) {
      const auto kept =
          std::find(plan_.grid.begin(), plan_.grid.end(), part.axis);
      if (kept == plan_.grid.end()) continue;
      const Axis axis = kernel_.axes[part.axis];
      part.axis = AddAxis(axis.name + "_element", axis.extent);
    }
  }
  for (const int axis : plan_.grid) {
    for (size_t i = 0; i < plan_.parts.size(); ++i) {
      for (size_t j = 0; j < plan_.parts[i].size(); ++j) {
        if (plan_.parts[i][j].axis != axis) continue;
        plan_.combined_grid.push_back(plan_.combined_parts[i][j].axis);
      }
    }
  }
}

// Into how many chunks the first folded axis may be cut.
int64_t LoopPlanner::MaxChunks(const LoopAxis& axis, bool last) const {
  if (!target_.simt) return kMaxChunks;
  const int64_t turn =
      last ? kBlockElements / (plan_.vector_grid ? kernel_.lanes : 1) : 1;
  return std::min(kMaxBlockChunks, axis.extent / (kMinRun * turn));
}

// The number of chunks. Threads that read many tensors need many registers, so
// that fewer of a GPU's blocks run at once. Those get no more chunks than
// wanted: a few blocks that run after all others would leave most of the GPU
// idle.
int64_t LoopPlanner::Chunks(int64_t extent, int64_t wanted,
                            int64_t limit) const {
  constexpr int64_t kManyTensors = 6;
  const int64_t tensors = std::count_if(
      kernel_.buffers.begin(), kernel_.buffers.end(), [](const auto& buffer) {
        return !buffer.written && buffer.elements >= kSplitElements;
      });
  return target_.simt && tensors >= kManyTensors
             ? LargestDivisor(extent, std::min(wanted, limit))
             : DivisorNear(extent, wanted, limit);
}

// A folded axis: its chunk part when the grid needs one (first axis), then an
// outer and an inner part when its run would be too long, and a GPU's rows
// (last axis).
void LoopPlanner::PlanFolded(size_t nest_axis, bool first, bool last,
                             Parts* parts) {
  const LoopAxis& axis = nest_.axes()[nest_axis];
  const bool vector = static_cast<int>(nest_axis) == nest_.fastest();
  int64_t extent = axis.extent;
  int64_t elements = plan_.kept_elements;
  for (const LoopAxis& a : nest_.axes()) elements *= a.folded ? a.extent : 1;
  const int64_t tasks = KeptTasks();
  if (first && tasks < 2 * target_.threads && elements >= kSplitElements) {
    const int64_t wanted = (4 * target_.threads + tasks - 1) / tasks;
    const int64_t chunks = Chunks(extent, wanted, MaxChunks(axis, last));
    if (chunks > 1) {
      plan_.chunk_axis = AddAxis(axis.name + "_chunk", chunks);
      extent /= chunks;
      parts->push_back({plan_.chunk_axis, extent});
    }
  }
  int64_t rows = 1;
  if (target_.simt && last && plan_.vector_grid) {
    const int64_t wanted =
        std::min(kBlockThreads, kBlockElements / kernel_.lanes);
    rows = DivisorNear(extent, wanted, 2 * wanted);
    extent /= rows;
  }
  const int64_t group = vector ? kernel_.lanes : 1;
  if (last && extent % group == 0 && extent / group > kMaxRun) {
    const int64_t run = LargestDivisor(extent / group, kMaxRun) * group;
    if (run >= 32 * group) {
      plan_.loops.push_back(AddAxis(axis.name + "_outer", extent / run));
      parts->push_back({plan_.loops.back(), run * rows});
      extent = run;
    }
  }
  if (extent > 1 || parts->empty()) {
    plan_.loops.push_back(AddAxis(axis.name, extent, vector));
    parts->push_back({plan_.loops.back(), rows});
    plan_.vector_loop |= vector;
  }
  if (rows > 1) {
    plan_.row_axis = AddAxis(axis.name + "_row", rows, false, true);
    parts->push_back({plan_.row_axis, 1});
  }
}

}  // namespace

LoopSchedule ScheduleMap(const LoopNest& nest, const ir::Target& target,
                         Kernel& kernel) {
  return LoopPlanner(nest, target, kernel).Map();
}

LoopSchedule ScheduleReduction(const LoopNest& nest, const ir::Target& target,
                               Kernel& kernel) {
  return LoopPlanner(nest, target, kernel).Reduction();
}

}  // namespace fusor::codegen
