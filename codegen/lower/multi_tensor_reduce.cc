// all_finite: x * 0 is 0 for finite x and NaN otherwise, and sums propagate
// NaN. So all operands are finite exactly if the sum of all x * 0 is.

#include "codegen/lower/multi_tensor_reduce.h"

#include <algorithm>
#include <map>

#include "codegen/kernel/kernel_builder.h"
#include "ir/support/error.h"

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

class ManyLowering {
 public:
  ManyLowering(const ir::Graph& body, const ir::Target& target)
      : body_(body),
        node_(*body.nodes()[0]),
        squares_(node_.output()->type().dtype != DType::kBool),
        tasks_(std::max(4 * target.threads, 1)),
        simt_(target.simt) {
    lowered_.kernel.name = std::string(node_.op_name());
    lowered_.kernel.lanes =
        static_cast<int>(simt_ ? kBlockElements : target.vector_bytes / 4);
  }

  LoweredKernel Lower() {
    AddOperands();
    result_ = AddBuffer("result", node_.output()->type().dtype, 1, true);
    lowered_.result_spans.push_back({0});
    if (simt_) lowered_.kernel.width = ThreadWidth(lowered_.kernel.buffers);
    AddShares();
    AddRest();
    return std::move(lowered_);
  }

 private:
  int AddBuffer(std::string name, DType dtype, int64_t elements, bool written) {
    lowered_.kernel.buffers.push_back(
        {std::move(name), dtype, elements, written});
    return static_cast<int>(lowered_.kernel.buffers.size()) - 1;
  }

  int AddAxis(const char* name, int64_t extent, bool vector) {
    lowered_.kernel.axes.push_back({name, extent, vector});
    return static_cast<int>(lowered_.kernel.axes.size()) - 1;
  }

  int NewRegister(DType dtype, bool vector) {
    lowered_.kernel.registers.push_back({dtype, vector});
    return static_cast<int>(lowered_.kernel.registers.size()) - 1;
  }

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
    const auto buffer = static_cast<int>(lowered_.kernel.buffers.size());
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
      end += (elements + unit - 1) / unit * unit;
    }
    if (span.size() == 1) end = body_.input(span[0])->type().num_elements();
    AddBuffer(body_.input(span[0])->name(), dtype, end, false);
  }

  // Returns the elements of the run that each task reduces: a multiple of the
  // elements per thread, so that little remains for the last phase, which has a
  // single task. Some threads of a GPU block may be idle.
  int64_t Share(const Run& run) const {
    const int64_t unit = lowered_.kernel.lanes_per_thread();
    return run.length / (tasks_ * unit) * unit;
  }

  // Adds a phase in which each task reduces its share of every run.
  void AddShares() {
    if (std::all_of(runs_.begin(), runs_.end(),
                    [&](const Run& run) { return Share(run) == 0; })) {
      return;
    }
    partial_ = AddBuffer("partial", DType::kF32, tasks_, true);
    lowered_.kernel.buffers[partial_].scratch = true;
    task_ = AddAxis("task", tasks_, false);
    Phase phase{{task_}, {}};
    Begin(phase);
    for (const Run& run : runs_) {
      const int64_t share = Share(run);
      if (share == 0) continue;
      Look(phase, run.buffer, share, {run.start, {{task_, share}}});
    }
    Stmt store{.kind = StmtKind::kStore};
    store.buffer = partial_;
    store.index = {0, {{task_, 1}}};
    store.src[0] = Sum(phase);
    phase.body.push_back(std::move(store));
    lowered_.kernel.phases.push_back(std::move(phase));
  }

  // Adds a phase of one task: reduces the rests of the runs and all partial
  // sums.
  void AddRest() {
    Phase phase;
    Begin(phase);
    for (const Run& run : runs_) {
      const int64_t done = tasks_ * Share(run);
      if (run.length == done) continue;
      Look(phase, run.buffer, run.length - done, {run.start + done, {}});
    }
    if (partial_ >= 0) Add(phase.body, sum_, partial_, {0, {}}, tasks_, false);
    int result = Sum(phase);
    if (!squares_) {
      Stmt finite{.kind = StmtKind::kCompute};
      finite.op = ScalarOp::kIsFinite;
      finite.src[0] = result;
      finite.dst = result = NewRegister(DType::kBool, false);
      phase.body.push_back(std::move(finite));
    }
    Stmt store{.kind = StmtKind::kStore};
    store.buffer = result_;
    store.src[0] = result;
    phase.body.push_back(std::move(store));
    lowered_.kernel.phases.push_back(std::move(phase));
  }

  // Starts a phase with a new accumulator.
  void Begin(Phase& phase) {
    sum_ = Accumulator(phase.body);
    zeros_.clear();
  }

  int Accumulator(std::vector<Stmt>& body) {
    Stmt init{.kind = StmtKind::kInit};
    init.op = ScalarOp::kAdd;
    const int sum = init.dst = NewRegister(DType::kF32, true);
    body.push_back(std::move(init));
    return sum;
  }

  int Zero(Phase& phase, DType dtype) {
    const auto [it, added] = zeros_.try_emplace(dtype, -1);
    if (!added) return it->second;
    Stmt zero{.kind = StmtKind::kConstant};
    zero.dst = it->second = NewRegister(dtype, false);
    phase.body.push_back(std::move(zero));
    return it->second;
  }

  // Adds x * x (all_finite: x * 0) of `length` elements from `index` on.
  void Look(Phase& phase, int buffer, int64_t length, Index index) {
    if (!squares_) Zero(phase, lowered_.kernel.buffers[buffer].dtype);
    const int64_t run = kMaxRun * lowered_.kernel.lanes;
    const int64_t runs = squares_ ? length / run : 0;
    if (runs > 1) {
      Stmt loop{.kind = StmtKind::kLoop};
      loop.axis = AddAxis("run", runs, false);
      Index inner = index;
      inner.terms.push_back({loop.axis, run});
      const int sum = Accumulator(loop.body);
      Add(loop.body, sum, buffer, std::move(inner), run, true);
      Fold(loop.body, sum_, sum);
      phase.body.push_back(std::move(loop));
      index.offset += runs * run;
      length -= runs * run;
    }
    if (length > 0) Add(phase.body, sum_, buffer, index, length, true);
  }

  static void Fold(std::vector<Stmt>& body, int to, int from) {
    Stmt add{.kind = StmtKind::kAccumulate};
    add.op = ScalarOp::kAdd;
    add.dst = to;
    add.src[0] = from;
    body.push_back(std::move(add));
  }

  // Emits a loop that adds to `sum`: with `look` x * x or x * 0, otherwise x.
  void Add(std::vector<Stmt>& body, int sum, int buffer, Index index,
           int64_t length, bool look) {
    const DType dtype = lowered_.kernel.buffers[buffer].dtype;
    Stmt loop{.kind = StmtKind::kLoop};
    loop.axis = AddAxis("i", length, true);
    index.terms.push_back({loop.axis, 1});
    Stmt load{.kind = StmtKind::kLoad};
    load.buffer = buffer;
    load.index = std::move(index);
    int value = load.dst = NewRegister(dtype, true);
    loop.body.push_back(std::move(load));
    const auto compute = [&](ScalarOp op, DType to, int other) {
      Stmt stmt{.kind = StmtKind::kCompute};
      stmt.op = op;
      stmt.src = {value, other, -1};
      value = stmt.dst = NewRegister(to, true);
      loop.body.push_back(std::move(stmt));
    };
    if (look && !squares_) compute(ScalarOp::kMul, dtype, zeros_.at(dtype));
    compute(ScalarOp::kIdentity, DType::kF32, -1);
    if (look && squares_) compute(ScalarOp::kMul, DType::kF32, value);
    Fold(loop.body, sum, value);
    body.push_back(std::move(loop));
  }

  int Sum(Phase& phase) {
    Stmt sum{.kind = StmtKind::kReduceLanes};
    sum.op = ScalarOp::kAdd;
    sum.src[0] = sum_;
    const int result = sum.dst = NewRegister(DType::kF32, false);
    phase.body.push_back(std::move(sum));
    return result;
  }

  const ir::Graph& body_;
  const ir::Node& node_;
  const bool squares_;
  const int64_t tasks_;
  const bool simt_;
  LoweredKernel lowered_;
  std::vector<Run> runs_;
  std::map<DType, int> zeros_;  // of the phase
  int sum_ = -1;                // of the phase
  int task_ = -1;
  int partial_ = -1;
  int result_ = -1;
};

}  // namespace

LoweredKernel LowerMultiTensorReduce(const ir::Graph& body,
                                     const ir::Target& target) {
  return ManyLowering(body, target).Lower();
}

}  // namespace fusor::codegen
