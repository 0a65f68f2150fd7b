// all_finite: x * 0 is 0 for finite x and NaN otherwise, and sums propagate
// NaN. So all operands are finite exactly if the sum of all x * 0 is.

#include <algorithm>
#include <map>

#include "codegen/kernel/kernel_builder.h"
#include "codegen/lower/lower.h"
#include "ir/support/error.h"
#include "ir/support/integer_math.h"

namespace fusor::codegen {
namespace {

using ir::DType;
using ir::ScalarOp;

// Maximal number of vectors per accumulator before it is added to another.
// Bounds the rounding error of long sums.
constexpr int64_t kMaxRun = 512;

// A contiguous range of elements in one kernel buffer.
struct Run {
  int buffer;
  int64_t start;
  int64_t length;
};

class ReduceLowering {
 public:
  ReduceLowering(const ir::Graph& body, const ir::Target& target, bool eager)
      : body_(body),
        node_(*body.nodes()[0]),
        squares_(node_.output()->type().dtype != DType::kBool),
        tasks_(std::max(4 * target.threads, 1)),
        simt_(target.simt),
        builder_(std::string(node_.op_name()), target, !eager) {}

  LoweredKernel Lower() {
    AddOperands();
    const int result = builder_.AddBuffer(
        "result", node_.output()->type().dtype, 1, BufferUse::kWritten);
    lowered_.result_spans.push_back({0});
    if (simt_) {
      builder_.SetLanes(kBlockElements, ThreadWidth(builder_.kernel().buffers));
    }
    const int partial = EmitShares();
    EmitRest(partial, result);
    lowered_.kernel = std::move(builder_).Build();
    return std::move(lowered_);
  }

 private:
  // Adds the operands' buffers and runs. An operand that appears several times
  // counts as often, but has one buffer.
  void AddOperands() {
    std::vector<int64_t> groups = node_.attrs().Ints("groups");
    if (groups.empty()) groups.assign(node_.num_inputs(), 1);
    std::map<std::vector<int>, std::vector<Run>> runs;  // of spans so far
    size_t operand = 0;
    for (int64_t size : groups) {
      std::vector<int> span;
      for (int64_t i = 0; i < size; ++i) {
        span.push_back(node_.input(operand++)->index());
      }
      const auto [known, added] = runs.try_emplace(span);
      if (!added) {
        runs_.insert(runs_.end(), known->second.begin(), known->second.end());
        continue;
      }
      const auto first = static_cast<ptrdiff_t>(runs_.size());
      AddSpan(span);
      known->second.assign(runs_.begin() + first, runs_.end());
      lowered_.operand_spans.push_back(std::move(span));
    }
  }

  // Adds the buffer and the runs of a span. A run continues from a tensor
  // without padding into the next one, except in sum_of_squares, where this
  // would change the order of the sum.
  void AddSpan(const std::vector<int>& span) {
    const DType dtype = body_.input(span[0])->type().dtype;
    const int64_t unit = kBufferAlignment / ir::DTypeSize(dtype);
    const auto buffer = static_cast<int>(lowered_.operand_spans.size());
    int64_t end = 0;
    bool gap = true;
    for (int operand : span) {
      const ir::TensorType& type = body_.input(operand)->type();
      FUSOR_ASSERT(type.dtype == dtype, "{}: {} and {} in one group",
                   node_.op_name(), DTypeName(dtype), DTypeName(type.dtype));
      const int64_t elements = type.num_elements();
      if (gap || squares_) runs_.push_back({buffer, end, 0});
      runs_.back().length += elements;
      gap = elements % unit != 0;
      end += RoundUp(elements, unit);
    }
    if (span.size() == 1) end = body_.input(span[0])->type().num_elements();
    builder_.AddBuffer(body_.input(span[0])->name(), dtype, end,
                       BufferUse::kRead);
  }

  // Returns the elements of the run that each task reduces: a multiple of the
  // elements per thread, so that little remains for the last phase, which has a
  // single task. Some threads of a GPU block may be idle.
  int64_t Share(const Run& run) const {
    const int64_t unit = builder_.kernel().lanes_per_thread();
    return run.length / (tasks_ * unit) * unit;
  }

  // Emits a phase in which each task reduces its share of every run. Returns
  // the buffer of the tasks' sums, or -1 if all shares are empty.
  int EmitShares() {
    if (std::all_of(runs_.begin(), runs_.end(),
                    [&](const Run& run) { return Share(run) == 0; })) {
      return -1;
    }
    const int partial =
        builder_.AddBuffer("partial", DType::kF32, tasks_, BufferUse::kScratch);
    const int task = builder_.AddAxis("task", tasks_);
    const auto phase = BeginPhase({task});
    for (const Run& run : runs_) {
      const int64_t share = Share(run);
      if (share == 0) continue;
      Reduce(run.buffer, share, {run.start, {{task, share}}});
    }
    builder_.Store(partial, {0, {{task, 1}}}, builder_.ReduceLanes(sum_));
    return partial;
  }

  // Emits a phase of one task: reduces the rests of the runs and all partial
  // sums.
  void EmitRest(int partial, int result) {
    const auto phase = BeginPhase({});
    for (const Run& run : runs_) {
      const int64_t done = tasks_ * Share(run);
      if (run.length == done) continue;
      Reduce(run.buffer, run.length - done, {run.start + done, {}});
    }
    if (partial >= 0) EmitLoop(sum_, partial, {0, {}}, tasks_, false);
    int value = builder_.ReduceLanes(sum_);
    if (!squares_) {
      value = builder_.Compute(ScalarOp::kIsFinite, DType::kBool, {value});
    }
    builder_.Store(result, {}, value);
  }

  // Begins a phase with a new accumulator.
  [[nodiscard]] KernelBuilder::Scope BeginPhase(std::vector<int> grid) {
    auto phase = builder_.BeginPhase(std::move(grid));
    sum_ = builder_.Accumulator(ScalarOp::kAdd, DType::kF32);
    zeros_.clear();
    return phase;
  }

  // Adds x * x (all_finite: x * 0) of `length` elements from `index` on.
  void Reduce(int buffer, int64_t length, Index index) {
    const int64_t run = kMaxRun * builder_.kernel().lanes;
    const int64_t runs = squares_ ? length / run : 0;
    if (runs > 1) {
      const int axis = builder_.AddAxis("run", runs);
      const auto loop = builder_.BeginLoop(axis);
      Index inner = index;
      inner.terms.push_back({axis, run});
      const int sum = builder_.Accumulator(ScalarOp::kAdd, DType::kF32);
      EmitLoop(sum, buffer, std::move(inner), run, true);
      builder_.Accumulate(sum_, sum);
      index.offset += runs * run;
      length -= runs * run;
    }
    if (length > 0) EmitLoop(sum_, buffer, std::move(index), length, true);
  }

  // Emits a loop that adds to `sum`: x, or x * x (all_finite: x * 0) if
  // `operand` is set.
  void EmitLoop(int sum, int buffer, Index index, int64_t length,
                bool operand) {
    const DType dtype = builder_.kernel().buffers[buffer].dtype;
    const bool finite = operand && !squares_;
    if (finite && !zeros_.contains(dtype)) {
      zeros_[dtype] = builder_.Constant(dtype, 0);
    }
    const int axis = builder_.AddAxis("i", length, AxisKind::kVector);
    const auto loop = builder_.BeginLoop(axis);
    index.terms.push_back({axis, 1});
    int value = builder_.Load(buffer, std::move(index));
    if (finite) {
      value =
          builder_.Compute(ScalarOp::kMul, dtype, {value, zeros_.at(dtype)});
    }
    value = builder_.Compute(ScalarOp::kIdentity, DType::kF32, {value});
    if (operand && squares_) {
      value = builder_.Compute(ScalarOp::kMul, DType::kF32, {value, value});
    }
    builder_.Accumulate(sum, value);
  }

  const ir::Graph& body_;
  const ir::Node& node_;
  const bool squares_;
  const int64_t tasks_;
  const bool simt_;
  KernelBuilder builder_;
  LoweredKernel lowered_;  // without its kernel
  std::vector<Run> runs_;
  std::map<DType, int> zeros_;  // of the phase
  int sum_ = -1;                // of the phase
};

}  // namespace

LoweredKernel LowerMultiTensorReduce(const ir::Graph& body,
                                     const ir::Target& target, bool eager) {
  return ReduceLowering(body, target, eager).Lower();
}

}  // namespace fusor::codegen
