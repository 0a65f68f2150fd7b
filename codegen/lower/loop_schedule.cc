#include "codegen/lower/loop_schedule.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "ir/support/integer_math.h"
namespace fusor::codegen {
namespace {

// Maximal terms per serial accumulator before it is added to an outer one.
// Bounds the rounding error of long sums.
constexpr int64_t kMaxRun = 512;
// A reduction with too few tasks is split if it has at least so many points.
constexpr int64_t kSplitElements = 16384;
constexpr int64_t kMaxChunks = 64;
// A task on a CPU that reads one vector of each row uses a part of many cache
// lines. With chunks of about this size, the lines are still cached when the
// tasks of the next vectors read them. Eight such chunks no longer fit.
constexpr int64_t kCachedElements = 65536;
constexpr int64_t kMaxCachedChunks = 256;
// Such a task reads at least this much of each row, four adjacent cache lines,
// if that takes at most kMaxRegisters vector registers for a value.
constexpr int64_t kRowBytes = 256;
constexpr int64_t kMaxRegisters = 4;
// A GPU has more threads to occupy and combines chunks in parallel.
constexpr int64_t kMaxBlockChunks = 1024;
// Threads per block that combines chunks: kElementThreads if a block combines
// those of one output element, kCombiningThreads if of all its lanes. There are
// few blocks of the second kind, so load latency dominates their time.
// Therefore one of them reads at most kCombinedByOne partial results.
constexpr int64_t kElementThreads = 128;
constexpr int64_t kCombiningThreads = 512;
constexpr int64_t kCombinedByOne = 16384;
// Minimal number of elements per GPU thread and chunk.
constexpr int64_t kMinThreadRun = 4;
// Minimal number of elements of a row for which its alignment matters.
constexpr int64_t kAlignedRow = 32;
constexpr int64_t kWarpThreads = 32;

// Returns the smallest divisor of n in [wanted, limit]. If there is none,
// returns the largest that is at most min(wanted, limit).
int64_t DivisorNear(int64_t n, int64_t wanted, int64_t limit) {
  for (int64_t d = wanted; d <= std::min(n, limit); ++d) {
    if (n % d == 0) return d;
  }
  return LargestDivisor(n, std::min(wanted, limit));
}

class LoopPlanner {
 public:
  LoopPlanner(const LoopNest& nest, const ir::Target& target,
              KernelBuilder& builder)
      : nest_(nest),
        target_(target),
        builder_(builder),
        kernel_(builder.kernel()) {}

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

  int64_t Width(int64_t extent) const;
  void ScheduleMap();
  void PlanBlockMap();
  int64_t KeptTasks() const;
  void PlanBlocks();
  void PlanKept(size_t nest_axis, bool last, Parts* parts);
  void ScheduleReduction();
  void PlanCombination();
  int64_t MaxRows() const;
  int RowedAxis();
  bool IsStrided() const;
  int64_t MaxChunks(size_t nest_axis) const;
  int64_t Chunks(int64_t extent, int64_t wanted, int64_t limit) const;
  void ChooseChunks(std::span<const size_t> folded);
  void WidenVector();
  void PlanFolded(size_t nest_axis, bool last, Parts* parts);

  const LoopNest& nest_;
  const ir::Target& target_;
  KernelBuilder& builder_;
  const Kernel& kernel_;  // so far
  LoopSchedule plan_;
  int64_t kept_rows_ = 1;  // rows of a block along a parallel axis
  // Reduction axis that gives a block its rows, an index in the nest; -1: none.
  int rowed_ = -1;
  int64_t reduced_rows_ = 1;  // wanted of it
  size_t chunked_ = 0;        // reduction axis that is split into chunks
  int64_t chunks_ = 1;
};

// Returns the elements per GPU thread. If rows of `extent` elements follow each
// other, a thread accesses no more elements than all rows are aligned to: more
// would be single, strided accesses of the threads of a warp.
int64_t LoopPlanner::Width(int64_t extent) const {
  const int64_t most = ThreadWidth(kernel_.buffers);
  return nest_.axes().size() < 2 || extent < kAlignedRow
             ? most
             : std::gcd(extent, most);
}

// Plans a kernel without reductions on a CPU. The slowest axes form the grid,
// as many as occupy all threads. The fastest is the vector axis. If the slower
// axes give enough tasks, it is a loop inside the task, so that values that
// depend only on the slower axes are loaded once.
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
    const int axis =
        builder_.AddAxis(axes[i].name, axes[i].extent, VectorIf(last));
    parts[i] = {{axis, 1}};
    const bool in_grid =
        !plan_.vector_loop || (!last && tasks < 4 * target_.threads);
    (in_grid ? plan_.grid : plan_.loops).push_back(axis);
    if (in_grid) tasks *= axes[i].extent;
  }
  plan_.parts = std::move(parts);
}

// Plans a kernel without reductions on a GPU. The fastest axis is the vector
// axis. The axis before it (RowAxis) provides the rows of a block and a
// grid-stride loop, with as many iterations as leave enough blocks to occupy
// the device. Values that do not depend on that axis are loaded once, before
// the loop.
void LoopPlanner::PlanBlockMap() {
  const std::vector<LoopAxis>& axes = nest_.axes();
  std::vector<Parts> parts(axes.size());
  const int64_t fastest = axes.empty() ? 1 : axes.back().extent;
  const int64_t width = Width(fastest);
  builder_.SetLanes(LanesFor(fastest, width, width * kBlockThreads), width);
  plan_.vector_grid = !axes.empty();
  int64_t rows = 1;
  int64_t tasks = (fastest + kernel_.lanes - 1) / kernel_.lanes;
  std::vector<int64_t> extents;
  for (size_t i = 0; i + 1 < axes.size(); ++i) {
    tasks *= axes[i].extent;
    extents.push_back(axes[i].extent);
  }
  const size_t rowed = extents.empty() ? axes.size()
                                       : RowAxis(extents, extents.size() - 1,
                                                 builder_.MaxRows());
  for (size_t i = 0; i < axes.size(); ++i) {
    const bool last = i + 1 == axes.size();
    if (i != rowed) {
      plan_.grid.push_back(
          builder_.AddAxis(axes[i].name, axes[i].extent, VectorIf(last)));
      parts[i] = {{plan_.grid.back(), 1}};
      continue;
    }
    rows = LargestDivisor(axes[i].extent, builder_.MaxRows());
    const int64_t enough = kBlocksPerMultiprocessor * target_.threads;
    const int64_t turns =
        LargestDivisor(axes[i].extent / rows, tasks / rows / enough);
    const int64_t outer = axes[i].extent / rows / turns;
    if (turns > 1) {
      plan_.loops.push_back(builder_.AddAxis(axes[i].name + "_turn", turns));
      parts[i].push_back({plan_.loops.back(), outer * rows});
    }
    plan_.grid.push_back(builder_.AddAxis(axes[i].name, outer));
    parts[i].push_back({plan_.grid.back(), rows});
    plan_.grid.push_back(
        builder_.AddAxis(axes[i].name + "_row", rows, AxisKind::kBlock));
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

// Sets lanes and width of a GPU reduction from the extent of the fastest axis.
// If that is a reduction axis, also sets kept_rows_, leaving enough blocks.
void LoopPlanner::PlanBlocks() {
  const std::vector<LoopAxis>& axes = nest_.axes();
  const int fastest = nest_.fastest();
  const bool across = fastest >= 0 && axes[fastest].folded;
  const int64_t extent = fastest < 0 ? 1 : axes[fastest].extent;
  const int64_t width = Width(extent);
  int64_t most_lanes = across ? kBlockElements : kBlockElements / kMinThreadRun;
  // Lanes of one warp need no barrier.
  if (width < ThreadWidth(kernel_.buffers)) most_lanes = kWarpThreads * width;
  const int64_t lanes = LanesFor(extent, 1, most_lanes);
  builder_.SetLanes(lanes, std::min(width, lanes));
  int64_t kept = 1;
  int64_t last = 1;
  for (const LoopAxis& axis : axes) {
    if (axis.folded) continue;
    kept *= axis.extent;
    last = axis.extent;
  }
  const int64_t most =
      std::min(MaxRows(), std::max<int64_t>(kept / (2 * target_.threads), 1));
  if (across) kept_rows_ = LargestDivisor(last, most);
  rowed_ = RowedAxis();
  if (across && rowed_ >= 0) kept_rows_ = 1;
}

int64_t LoopPlanner::MaxRows() const {
  return std::min({kBlockThreads, kBlockElements / kernel_.lanes,
                   kBlockThreads * kernel_.width / kernel_.lanes});
}

// Returns the reduction axis that gives a block its rows: the fastest one, or
// another (RowAxis), whose rows are far apart in memory: then half as many. If
// the vector axis is reduced, rows of parallel axes come first, because they
// need no shared memory. -1: these are enough, or no other axis is reduced.
int LoopPlanner::RowedAxis() {
  const std::vector<LoopAxis>& axes = nest_.axes();
  std::vector<int64_t> extents;
  int last = -1;
  for (size_t i = 0; i < axes.size(); ++i) {
    const bool candidate =
        axes[i].folded && static_cast<int>(i) != nest_.fastest();
    extents.push_back(candidate ? axes[i].extent : 1);
    if (candidate) last = static_cast<int>(i);
  }
  if (last < 0) return -1;
  reduced_rows_ = MaxRows();
  const bool across = nest_.fastest() >= 0 && axes[nest_.fastest()].folded;
  if (across && 4 * kept_rows_ >= reduced_rows_) return -1;
  const int64_t near =
      DivisorNear(extents[last], reduced_rows_, 2 * reduced_rows_);
  if (near > 1 && 4 * near >= reduced_rows_) return last;
  const auto rowed = static_cast<int>(RowAxis(extents, last, reduced_rows_));
  if (rowed != last) reduced_rows_ /= 2;
  const int64_t rows = LargestDivisor(extents[rowed], reduced_rows_);
  return across && rows <= kept_rows_ ? -1 : rowed;
}

void LoopPlanner::PlanKept(size_t nest_axis, bool last, Parts* parts) {
  const LoopAxis& axis = nest_.axes()[nest_axis];
  const bool vector = static_cast<int>(nest_axis) == nest_.fastest();
  const int64_t rows = last && !vector ? kept_rows_ : 1;
  *parts = builder_.AddGridAxis(plan_.grid, axis.name, axis.extent, rows,
                                VectorIf(vector), axis.name + "_row");
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
  ChooseChunks(folded);
  for (size_t j = 0; j < folded.size(); ++j) {
    PlanFolded(folded[j], j + 1 == folded.size(), &parts[folded[j]]);
  }
  plan_.parts = std::move(parts);
  if (plan_.chunk_axis >= 0) PlanCombination();
  WidenVector();
}

// Plans the phase that combines the partial results of chunks. One serial loop
// over the chunks combines those of all reductions. On a GPU the rows of a
// block share the loop. If the vector axis is parallel and there are many
// chunks, each output element gets a separate block.
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
  plan_.combined_loop =
      builder_.AddAxis("chunk", chunks / rows, VectorIf(single));
  plan_.combined_rows = builder_.AddAxis("chunk_row", rows, AxisKind::kBlock);
  if (!single) return;
  plan_.combined_parts = plan_.parts;
  for (Parts& parts : plan_.combined_parts) {
    for (AxisPart& part : parts) {
      const auto kept =
          std::find(plan_.grid.begin(), plan_.grid.end(), part.axis);
      if (kept == plan_.grid.end()) continue;
      const Axis axis = kernel_.axes[part.axis];
      part.axis = builder_.AddAxis(axis.name + "_element", axis.extent);
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

// Gives a value several vector registers if a task would read less than
// kRowBytes of each row, unless that leaves too few tasks. The chunks stay the
// same, and with them the bits of the sums.
void LoopPlanner::WidenVector() {
  if (!IsStrided()) return;
  int64_t element = kRowBytes;  // bytes, of the narrowest large tensor
  for (const auto& buffer : kernel_.buffers) {
    if (buffer.written || buffer.elements < kSplitElements) continue;
    element = std::min(element, ir::DTypeSize(buffer.dtype));
  }
  const int64_t extent = nest_.axes()[nest_.fastest()].extent;
  // Whole groups of lanes keep bitmasks possible.
  const bool divided = extent % kernel_.lanes == 0;
  const auto fits = [&](int64_t lanes) {
    return divided ? extent % lanes == 0 : 2 * extent > lanes;
  };
  const int64_t most = chunks_ * plan_.kept_elements / (2 * target_.threads);
  int64_t lanes = std::min(kRowBytes / element, kMaxRegisters * kernel_.lanes);
  while (lanes > kernel_.lanes && (!fits(lanes) || lanes > most)) {
    lanes /= 2;
  }
  if (lanes > kernel_.lanes) builder_.SetLanes(lanes, 0);
}

// Whether a task on a CPU reads one vector of several in each row.
bool LoopPlanner::IsStrided() const {
  const int fastest = nest_.fastest();
  return !target_.simt && fastest >= 0 && !nest_.axes()[fastest].folded &&
         (nest_.axes()[fastest].extent > kernel_.lanes || nest_.divides_rows());
}

// Returns the maximal number of chunks of a reduction axis. A thread reduces
// kMinThreadRun elements, along this axis or others.
int64_t LoopPlanner::MaxChunks(size_t nest_axis) const {
  if (!target_.simt) return IsStrided() ? kMaxCachedChunks : kMaxChunks;
  const auto axis = static_cast<int>(nest_axis);
  const std::vector<LoopAxis>& axes = nest_.axes();
  int64_t others = 1;  // elements of a thread
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto other = static_cast<int>(i);
    if (!axes[i].folded || other == axis || other == nest_.fastest()) continue;
    others *= axes[i].extent / (other == rowed_ ? reduced_rows_ : 1);
  }
  int64_t turn = others >= kMinThreadRun ? 1 : kMinThreadRun;
  if (axis == nest_.fastest()) {
    turn = kMinThreadRun * kBlockElements;
  } else if (axis == rowed_) {
    const bool last = nest_axis + 1 == axes.size() ||
                      static_cast<int>(nest_axis) + 1 == nest_.fastest();
    turn = last ? turn * kBlockElements / kernel_.lanes : reduced_rows_;
  }
  return std::min(kMaxBlockChunks, axes[nest_axis].extent / turn);
}

// Returns the number of chunks. On a GPU, threads that read many tensors need
// many registers, so fewer blocks run at once. Such kernels get at most
// `wanted` chunks, unless that means less than half as many: a last wave of few
// blocks would leave most of the GPU idle.
int64_t LoopPlanner::Chunks(int64_t extent, int64_t wanted,
                            int64_t limit) const {
  constexpr int64_t kManyTensors = 6;
  const int64_t tensors = std::count_if(
      kernel_.buffers.begin(), kernel_.buffers.end(), [](const auto& buffer) {
        return !buffer.written && buffer.elements >= kSplitElements;
      });
  const int64_t fewer = LargestDivisor(extent, std::min(wanted, limit));
  return target_.simt && tensors >= kManyTensors && 2 * fewer >= wanted
             ? fewer
             : DivisorNear(extent, wanted, limit);
}

// Chooses the reduction axis that is split into chunks, if the grid has too few
// tasks, or if a task would read one vector of many in each row: the slowest,
// or the next if that has less than half as many chunks as wanted, but on a CPU
// only for such rows. If blocks of channels divide the rows, images are chunks
// if they occupy the threads: a block of an image is contiguous, and adjacent
// tasks share cache lines however many rows they read.
void LoopPlanner::ChooseChunks(std::span<const size_t> folded) {
  int64_t elements = plan_.kept_elements;
  for (const size_t axis : folded) elements *= nest_.axes()[axis].extent;
  const int64_t tasks = KeptTasks();
  int64_t wanted = 1;
  if (tasks < 2 * target_.threads && elements >= kSplitElements) {
    wanted = CeilDiv(4 * target_.threads, tasks);
  }
  if (IsStrided() && elements >= 8 * kCachedElements) {
    wanted = std::max(wanted, elements / kCachedElements);
  }
  if (wanted == 1) return;
  for (const size_t axis : folded) {
    const int64_t chunks =
        Chunks(nest_.axes()[axis].extent, wanted, MaxChunks(axis));
    if (chunks > chunks_) {
      chunked_ = axis;
      chunks_ = chunks;
    }
    if (!target_.simt && !IsStrided()) return;
    const bool divided = !target_.simt && nest_.divides_rows();
    if (divided ? chunks_ * tasks >= 4 * target_.threads
                : 2 * chunks_ >= wanted) {
      return;
    }
  }
}

// Splits a reduction axis. One gets a chunk part (ChooseChunks). The last axis
// gets an outer and an inner part if its run would exceed kMaxRun. On a
// GPU one axis gets rows.
void LoopPlanner::PlanFolded(size_t nest_axis, bool last, Parts* parts) {
  const LoopAxis& axis = nest_.axes()[nest_axis];
  const bool vector = static_cast<int>(nest_axis) == nest_.fastest();
  int64_t extent = axis.extent;
  if (chunks_ > 1 && nest_axis == chunked_) {
    plan_.chunk_axis = builder_.AddAxis(axis.name + "_chunk", chunks_);
    extent /= chunks_;
    parts->push_back({plan_.chunk_axis, extent});
  }
  int64_t rows = 1;
  if (static_cast<int>(nest_axis) == rowed_) {
    rows = DivisorNear(extent, reduced_rows_, 2 * reduced_rows_);
    extent /= rows;
  }
  const int64_t group = vector ? kernel_.lanes : 1;
  if (last && extent % group == 0 && extent / group > kMaxRun) {
    const int64_t run = LargestDivisor(extent / group, kMaxRun) * group;
    if (run >= 32 * group) {
      plan_.loops.push_back(
          builder_.AddAxis(axis.name + "_outer", extent / run));
      parts->push_back({plan_.loops.back(), run * rows});
      extent = run;
    }
  }
  if (extent > 1 || parts->empty()) {
    plan_.loops.push_back(
        builder_.AddAxis(axis.name, extent, VectorIf(vector)));
    parts->push_back({plan_.loops.back(), rows});
    plan_.vector_loop |= vector;
  }
  if (rows > 1) {
    plan_.row_axis =
        builder_.AddAxis(axis.name + "_row", rows, AxisKind::kBlock);
    parts->push_back({plan_.row_axis, 1});
  }
}

}  // namespace

LoopSchedule ScheduleMap(const LoopNest& nest, const ir::Target& target,
                         KernelBuilder& builder) {
  return LoopPlanner(nest, target, builder).Map();
}

LoopSchedule ScheduleReduction(const LoopNest& nest, const ir::Target& target,
                               KernelBuilder& builder) {
  return LoopPlanner(nest, target, builder).Reduction();
}

}  // namespace fusor::codegen
