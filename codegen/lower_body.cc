#include "codegen/lower_body.h"

#include <algorithm>
#include <unordered_set>

#include "codegen/block_shape.h"
#include "codegen/fusion_body.h"
#include "codegen/loop_nest.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "passes/fusion_domain.h"

namespace fusor::codegen {
namespace {

using ir::DType;
using ir::FusionKind;
using ir::Node;
using ir::Value;

// Terms that a serial accumulator may add before it is folded into an outer
// one: bounds the rounding error of long sums.
constexpr int64_t kMaxRun = 512;
// Domain points from which a reduction with too few tasks is split.
constexpr int64_t kSplitElements = 16384;
constexpr int64_t kMaxChunks = 64;
// Of a GPU, which has more threads to wait for, and combines them in parallel.
constexpr int64_t kMaxBlockChunks = 1024;
// Threads of a block that combines chunks. There are few such blocks, so that
// the time that a block waits for its loads is what the combination takes.
constexpr int64_t kCombiningThreads = 512;
// Elements that a GPU's thread adds up, at least, before a chunk ends.
constexpr int64_t kMinRun = 4;

// Reductions accumulate in at least f32, and small integers in i32.
DType AccumulatorDType(DType dtype) {
  if (dtype == DType::kF16 || dtype == DType::kBF16) return DType::kF32;
  return dtype == DType::kU8 ? DType::kI32 : dtype;
}

// Smallest divisor of n that is at least `wanted`, at most `limit`; else the
// largest that is at most `limit`.
int64_t DivisorNear(int64_t n, int64_t wanted, int64_t limit) {
  for (int64_t d = wanted; d <= std::min(n, limit); ++d) {
    if (n % d == 0) return d;
  }
  return LargestDivisor(n, std::min(wanted, limit));
}

// Lowers one body. The loops are planned first (PlanLoops), then every sweep
// over the folded axes is emitted: into one phase when the kept axes alone give
// enough tasks; else, split along the slowest folded axis into chunks, as a
// phase that leaves partial results and one that combines them.
//
// On a GPU a task is a block. Its lanes lie along the fastest axis, its rows
// along the axis that is the fastest of the others: where that is a folded one,
// they are reduced through shared memory after the loops.
class Lowering {
 public:
  Lowering(const ir::Graph& body, const ir::Target& target, bool eager)
      : body_graph_(body), target_(target), eager_(eager) {}

  LoweredKernel Run();

 private:
  using Parts = std::vector<FusionBody::AxisPart>;

  void AddBuffers();
  int AddAxis(const std::string& name, int64_t extent, bool vector = false,
              bool block = false);
  int AddScratch(const std::string& name, DType dtype, int64_t elements);
  void PlanMap();
  void PlanBlockMap();
  void PlanBlocks();
  void PlanKept(size_t nest_axis, bool last, Parts* parts);
  int64_t MaxChunks(const LoopAxis& axis, bool last) const;
  void PlanReduction();
  void PlanFolded(size_t nest_axis, bool first, bool last, Parts* parts);
  void PlanCombination();
  int64_t KeptTasks() const;

  void EmitMap();
  void EmitSweep(int sweep);
  void EmitChunkedSweep(int sweep);
  void EmitCombination(int sweep, const std::vector<const Node*>& reductions,
                       const std::vector<int>& partials);
  void KeepResult(const Node& reduce);
  int EmitBlockReduction(const Node& reduce, int reg);
  std::vector<int> WithAxes(std::initializer_list<int> axes) const;
  void EmitLoops(int sweep, const std::vector<const Node*>& reductions,
                 std::vector<int>* totals);
  void EmitInnermost(int sweep, const std::vector<const Node*>& reductions,
                     const std::vector<int>& accumulators);
  void EmitOuterResults(int sweep);
  void StoreResult(size_t output);
  void DefineResult(const Node& reduce, int reg);
  int InitAccumulator(const Node& reduce, bool vector);
  void Accumulate(const Node& reduce, int accumulator, int reg);
  std::vector<const Node*> ReductionsOf(int sweep) const;
  bool HasInnerResults(int sweep) const;
  bool HasOuterResults(int sweep) const;
  bool IsOuterResult(const Value* value) const;
  Index KeptIndex() const;
  void LoadEarlierResults(int sweep);
  std::vector<LoweredKernel::Alias> FindAliases() const;

  const ir::Graph& body_graph_;
  const ir::Target& target_;
  const bool eager_;
  passes::FusionDomain domain_;
  Kernel kernel_;
  std::unique_ptr<LoopNest> nest_;
  std::unique_ptr<FusionBody> body_;

  std::vector<int> grid_;     // kernel axes; a vector axis last
  std::vector<int> loops_;    // kernel axes inside a task
  bool vector_loop_ = false;  // the last loop is the vector axis
  bool vector_grid_ = false;  // the last grid axis is
  int chunk_axis_ = -1;       // kernel axis, when split
  int row_axis_ = -1;         // kernel axis: a block's rows that are reduced
  int64_t kept_rows_ = 1;     // a block's rows that are not
  // Of the chunks, where partial results are combined.
  int combined_loop_ = -1;
  int combined_rows_ = -1;  // a block axis
  int64_t kept_elements_ = 1;
  std::unordered_map<const Value*, int> result_scratch_;
};

LoweredKernel Lowering::Run() {
  std::vector<const Node*> nodes;
  for (const auto& node : body_graph_.nodes()) nodes.push_back(node.get());
  std::unordered_set<const Value*> results;
  for (const ir::Output& output : body_graph_.outputs()) {
    results.insert(output.value);
  }
  std::string reason;
  const bool ok = passes::AnalyzeDomain(nodes, results, &domain_, &reason);
  FUSOR_ASSERT(ok, "fusion of {} nodes: {}", nodes.size(), reason);
  const std::vector<Access> accesses =
      FusionBody::CollectAccesses(body_graph_, domain_);
  // Fusion changes what is read beside a sum, eager rounding no bit of it.
  nest_ = std::make_unique<LoopNest>(domain_, accesses,
                                     /*merge_folded=*/!eager_);
  body_ = std::make_unique<FusionBody>(body_graph_, domain_, *nest_, kernel_,
                                       eager_);
  kernel_.name = "fusion";
  kernel_.lanes = static_cast<int>(target_.vector_bytes / 4);
  kernel_.contract = !eager_;
  AddBuffers();
  if (!domain_.has_reduction) {
    PlanMap();
    EmitMap();
  } else {
    PlanReduction();
    if (chunk_axis_ < 0) body_->BeginPhase(WithAxes({row_axis_}));
    for (int s = 0; s < domain_.num_sweeps; ++s) {
      if (chunk_axis_ < 0) {
        EmitSweep(s);
      } else {
        EmitChunkedSweep(s);
      }
    }
    if (chunk_axis_ < 0) body_->EndPhase();
  }
  LoweredKernel lowered;
  lowered.in_place = FindAliases();
  for (size_t i = 0; i < body_graph_.inputs().size(); ++i) {
    lowered.operand_spans.push_back({static_cast<int>(i)});
  }
  for (size_t i = 0; i < body_graph_.outputs().size(); ++i) {
    lowered.result_spans.push_back({static_cast<int>(i)});
  }
  lowered.kernel = std::move(kernel_);
  return lowered;
}

void Lowering::AddBuffers() {
  for (const ir::Input& input : body_graph_.inputs()) {
    kernel_.buffers.push_back({input.value->name(), input.value->type().dtype,
                               input.value->type().num_elements()});
  }
  for (const ir::Output& output : body_graph_.outputs()) {
    kernel_.buffers.push_back({output.value->name(), output.value->type().dtype,
                               output.value->type().num_elements(), true});
  }
}

int Lowering::AddAxis(const std::string& name, int64_t extent, bool vector,
                      bool block) {
  kernel_.axes.push_back({name, extent, vector, block});
  return static_cast<int>(kernel_.axes.size()) - 1;
}

int Lowering::AddScratch(const std::string& name, DType dtype,
                         int64_t elements) {
  kernel_.buffers.push_back({name, dtype, elements, true, true});
  return static_cast<int>(kernel_.buffers.size()) - 1;
}

// No reduction: as many of the slowest axes as it takes to occupy all threads
// form the grid; the fastest is the vector axis, inside the task when possible
// so that what the slower axes determine is loaded once.
void Lowering::PlanMap() {
  if (target_.simt) return PlanBlockMap();
  const std::vector<LoopAxis>& axes = nest_->axes();
  std::vector<Parts> parts(axes.size());
  int64_t slower = 1;
  for (size_t i = 0; i + 1 < axes.size(); ++i) slower *= axes[i].extent;
  vector_loop_ = slower >= 2 * target_.threads;
  vector_grid_ = !vector_loop_ && !axes.empty();
  int64_t tasks = 1;
  for (size_t i = 0; i < axes.size(); ++i) {
    const bool last = i + 1 == axes.size();
    const int axis = AddAxis(axes[i].name, axes[i].extent, last);
    parts[i] = {{axis, 1}};
    const bool in_grid =
        !vector_loop_ || (!last && tasks < 4 * target_.threads);
    (in_grid ? grid_ : loops_).push_back(axis);
    if (in_grid) tasks *= axes[i].extent;
  }
  body_->SetParts(std::move(parts));
}

// No reduction, on a GPU: the fastest axis is the vector axis, the one before
// it gives the block its rows. What is left of that one is walked in steps of
// the whole grid, as often as leaves enough blocks to fill the device, so that
// what it does not determine is loaded once.
void Lowering::PlanBlockMap() {
  const std::vector<LoopAxis>& axes = nest_->axes();
  std::vector<Parts> parts(axes.size());
  kernel_.width = ThreadWidth(kernel_.buffers);
  const int64_t fastest = axes.empty() ? 1 : axes.back().extent;
  kernel_.lanes = static_cast<int>(
      LanesFor(fastest, kernel_.width, kernel_.width * kBlockThreads));
  vector_grid_ = !axes.empty();
  int64_t rows = 1;
  int64_t tasks = (fastest + kernel_.lanes - 1) / kernel_.lanes;
  for (size_t i = 0; i + 1 < axes.size(); ++i) tasks *= axes[i].extent;
  for (size_t i = 0; i < axes.size(); ++i) {
    const bool last = i + 1 == axes.size();
    if (i + 2 != axes.size()) {
      grid_.push_back(AddAxis(axes[i].name, axes[i].extent, last));
      parts[i] = {{grid_.back(), 1}};
      continue;
    }
    rows = LargestDivisor(axes[i].extent,
                          kBlockThreads * kernel_.width / kernel_.lanes);
    const int64_t enough = kBlocksPerMultiprocessor * target_.threads;
    const int64_t turns =
        LargestDivisor(axes[i].extent / rows, tasks / rows / enough);
    const int64_t outer = axes[i].extent / rows / turns;
    if (turns > 1) {
      loops_.push_back(AddAxis(axes[i].name + "_turn", turns));
      parts[i].push_back({loops_.back(), outer * rows});
    }
    grid_.push_back(AddAxis(axes[i].name, outer));
    parts[i].push_back({grid_.back(), rows});
    grid_.push_back(AddAxis(axes[i].name + "_row", rows, false, true));
    parts[i].push_back({grid_.back(), 1});
  }
  body_->SetParts(std::move(parts));
}

void Lowering::EmitMap() {
  body_->BeginPhase(grid_);
  for (int axis : loops_) body_->OpenLoop(axis);
  std::vector<int> regs;
  for (const ir::Output& output : body_graph_.outputs()) {
    regs.push_back(body_->Eval(output.value));
  }
  for (size_t i = 0; i < regs.size(); ++i) StoreResult(i);
  for (size_t i = 0; i < loops_.size(); ++i) body_->CloseLoop();
  body_->EndPhase();
}

int64_t Lowering::KeptTasks() const {
  int64_t tasks = 1;
  for (int axis : grid_) {
    const Axis& a = kernel_.axes[axis];
    if (a.block) continue;
    tasks *=
        a.vector ? (a.extent + kernel_.lanes - 1) / kernel_.lanes : a.extent;
  }
  return tasks;
}

// Of a reduction on a GPU: lanes by the extent of the fastest axis; rows that
// are kept when that one is folded and enough blocks remain without them.
void Lowering::PlanBlocks() {
  const std::vector<LoopAxis>& axes = nest_->axes();
  const int fastest = nest_->fastest();
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

void Lowering::PlanKept(size_t nest_axis, bool last, Parts* parts) {
  const LoopAxis& axis = nest_->axes()[nest_axis];
  const bool vector = static_cast<int>(nest_axis) == nest_->fastest();
  const int64_t rows = last && !vector ? kept_rows_ : 1;
  grid_.push_back(AddAxis(axis.name, axis.extent / rows, vector));
  parts->push_back({grid_.back(), rows});
  if (rows > 1) {
    grid_.push_back(AddAxis(axis.name + "_row", rows, false, true));
    parts->push_back({grid_.back(), 1});
  }
  vector_grid_ |= vector;
  kept_elements_ *= axis.extent;
}

void Lowering::PlanReduction() {
  const std::vector<LoopAxis>& axes = nest_->axes();
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
  body_->SetParts(std::move(parts));
  if (chunk_axis_ >= 0) PlanCombination();
}

// Partial results of chunks are combined one after the other, those of all
// reductions side by side, on a GPU by each row of a block its share of them.
void Lowering::PlanCombination() {
  const int64_t chunks = kernel_.axes[chunk_axis_].extent;
  combined_loop_ = chunk_axis_;
  if (!target_.simt || kept_rows_ > 1) return;
  const int64_t across = vector_grid_ ? kernel_.lanes / kernel_.width : 1;
  const int64_t rows = LargestDivisor(chunks, kCombiningThreads / across);
  combined_loop_ = AddAxis("chunk", chunks / rows);
  combined_rows_ = AddAxis("chunk_row", rows, false, true);
}

// Into how many chunks the first folded axis may be cut.
int64_t Lowering::MaxChunks(const LoopAxis& axis, bool last) const {
  if (!target_.simt) return kMaxChunks;
  const int64_t turn =
      last ? kBlockElements / (vector_grid_ ? kernel_.lanes : 1) : 1;
  return std::min(kMaxBlockChunks, axis.extent / (kMinRun * turn));
}

// A folded axis: its chunk part when the grid needs one (first axis), then an
// outer and an inner part when its run would be too long, and a GPU's rows
// (last axis).
void Lowering::PlanFolded(size_t nest_axis, bool first, bool last,
                          Parts* parts) {
  const LoopAxis& axis = nest_->axes()[nest_axis];
  const bool vector = static_cast<int>(nest_axis) == nest_->fastest();
  int64_t extent = axis.extent;
  int64_t elements = kept_elements_;
  for (const LoopAxis& a : nest_->axes()) elements *= a.folded ? a.extent : 1;
  const int64_t tasks = KeptTasks();
  if (first && tasks < 2 * target_.threads && elements >= kSplitElements) {
    const int64_t wanted = (4 * target_.threads + tasks - 1) / tasks;
    const int64_t chunks = DivisorNear(extent, wanted, MaxChunks(axis, last));
    if (chunks > 1) {
      chunk_axis_ = AddAxis(axis.name + "_chunk", chunks);
      extent /= chunks;
      parts->push_back({chunk_axis_, extent});
    }
  }
  int64_t rows = 1;
  if (target_.simt && last && vector_grid_) {
    rows = LargestDivisor(
        extent, std::min(kBlockThreads, kBlockElements / kernel_.lanes));
    extent /= rows;
  }
  const int64_t group = vector ? kernel_.lanes : 1;
  if (last && extent % group == 0 && extent / group > kMaxRun) {
    const int64_t run = LargestDivisor(extent / group, kMaxRun) * group;
    if (run >= 32 * group) {
      loops_.push_back(AddAxis(axis.name + "_outer", extent / run));
      parts->push_back({loops_.back(), run * rows});
      extent = run;
    }
  }
  if (extent > 1 || parts->empty()) {
    loops_.push_back(AddAxis(axis.name, extent, vector));
    parts->push_back({loops_.back(), rows});
    vector_loop_ |= vector;
  }
  if (rows > 1) {
    row_axis_ = AddAxis(axis.name + "_row", rows, false, true);
    parts->push_back({row_axis_, 1});
  }
}

std::vector<const Node*> Lowering::ReductionsOf(int sweep) const {
  std::vector<const Node*> reductions;
  for (const auto& node : body_graph_.nodes()) {
    if (node->op().fusion == FusionKind::kReduce &&
        domain_.sweep.at(node->output()) == sweep) {
      reductions.push_back(node.get());
    }
  }
  return reductions;
}

bool Lowering::IsOuterResult(const Value* value) const {
  return domain_.IsOuter(domain_.maps.at(value));
}

bool Lowering::HasInnerResults(int sweep) const {
  return std::any_of(body_graph_.outputs().begin(), body_graph_.outputs().end(),
                     [&](const ir::Output& o) {
                       return !IsOuterResult(o.value) &&
                              domain_.sweep.at(o.value) == sweep;
                     });
}

bool Lowering::HasOuterResults(int sweep) const {
  return std::any_of(body_graph_.outputs().begin(), body_graph_.outputs().end(),
                     [&](const ir::Output& o) {
                       return IsOuterResult(o.value) &&
                              std::max(domain_.sweep.at(o.value), 0) == sweep;
                     });
}

void Lowering::StoreResult(size_t output) {
  const Value* value = body_graph_.outputs()[output].value;
  const int buffer = static_cast<int>(body_graph_.inputs().size() + output);
  body_->Store(buffer, {value->type(), domain_.maps.at(value)},
               body_->Eval(value));
}

void Lowering::EmitOuterResults(int sweep) {
  body_->set_time(2 * sweep + 1);
  std::vector<size_t> outputs;
  for (size_t i = 0; i < body_graph_.outputs().size(); ++i) {
    const Value* value = body_graph_.outputs()[i].value;
    if (IsOuterResult(value) && std::max(domain_.sweep.at(value), 0) == sweep) {
      outputs.push_back(i);
      body_->Eval(value);
    }
  }
  for (size_t i : outputs) StoreResult(i);
}

int Lowering::InitAccumulator(const Node& reduce, bool vector) {
  const DType dtype = AccumulatorDType(reduce.output()->type().dtype);
  const int reg = body_->NewRegister(dtype, vector);
  Stmt init{.kind = StmtKind::kInit};
  init.dst = reg;
  init.op = ir::NodeScalar(reduce);
  body_->Append(std::move(init));
  return reg;
}

void Lowering::Accumulate(const Node& reduce, int accumulator, int reg) {
  Stmt stmt{.kind = StmtKind::kAccumulate};
  stmt.dst = accumulator;
  stmt.op = ir::NodeScalar(reduce);
  stmt.src[0] = reg;
  body_->Append(std::move(stmt));
}

// What the sweep computes per domain point: all loads before any store.
void Lowering::EmitInnermost(int sweep,
                             const std::vector<const Node*>& reductions,
                             const std::vector<int>& accumulators) {
  std::vector<int> operands;
  for (const Node* reduce : reductions) {
    operands.push_back(body_->EvalReduced(*reduce));
  }
  std::vector<size_t> outputs;
  for (size_t i = 0; i < body_graph_.outputs().size(); ++i) {
    const Value* value = body_graph_.outputs()[i].value;
    if (!IsOuterResult(value) && domain_.sweep.at(value) == sweep) {
      outputs.push_back(i);
      body_->Eval(value);
    }
  }
  for (size_t i = 0; i < reductions.size(); ++i) {
    Accumulate(*reductions[i], accumulators[i], operands[i]);
  }
  for (size_t i : outputs) StoreResult(i);
}

// The loops of one sweep. Each run of the innermost loop has accumulators of
// its own, folded into the sweep's: two-level summation.
void Lowering::EmitLoops(int sweep, const std::vector<const Node*>& reductions,
                         std::vector<int>* totals) {
  body_->set_time(2 * sweep);
  const bool vector = vector_grid_ || vector_loop_;
  for (const Node* reduce : reductions) {
    totals->push_back(InitAccumulator(*reduce, vector));
  }
  const bool two_level = loops_.size() >= 2;
  std::vector<int> run = *totals;
  for (size_t i = 0; i < loops_.size(); ++i) {
    if (two_level && i + 1 == loops_.size()) {
      run.clear();
      for (const Node* reduce : reductions) {
        run.push_back(InitAccumulator(*reduce, vector));
      }
    }
    body_->OpenLoop(loops_[i]);
  }
  EmitInnermost(sweep, reductions, run);
  for (size_t i = loops_.size(); i-- > 0;) {
    body_->CloseLoop();
    if (!two_level || i + 1 != loops_.size()) continue;
    for (size_t r = 0; r < reductions.size(); ++r) {
      Accumulate(*reductions[r], (*totals)[r], run[r]);
    }
  }
  if (row_axis_ >= 0) {
    for (size_t r = 0; r < reductions.size(); ++r) {
      (*totals)[r] = EmitBlockReduction(*reductions[r], (*totals)[r]);
    }
  }
  if (!vector_loop_) return;
  for (size_t r = 0; r < reductions.size(); ++r) {
    Stmt stmt{.kind = StmtKind::kReduceLanes};
    stmt.op = ir::NodeScalar(*reductions[r]);
    stmt.src[0] = (*totals)[r];
    stmt.dst = body_->NewRegister(kernel_.registers[(*totals)[r]].dtype, false);
    (*totals)[r] = stmt.dst;
    body_->Append(std::move(stmt));
  }
}

int Lowering::EmitBlockReduction(const Node& reduce, int reg) {
  Stmt stmt{.kind = StmtKind::kReduceBlock};
  stmt.op = ir::NodeScalar(reduce);
  stmt.src[0] = reg;
  const Register info = kernel_.registers[reg];
  const int result = stmt.dst = body_->NewRegister(info.dtype, info.vector);
  body_->Append(std::move(stmt));
  return result;
}

void Lowering::DefineResult(const Node& reduce, int reg) {
  const DType dtype = reduce.output()->type().dtype;
  if (eager_ && dtype != kernel_.registers[reg].dtype) {
    Stmt stmt{.kind = StmtKind::kCompute};
    stmt.round = true;
    stmt.src[0] = reg;
    stmt.dst = body_->NewRegister(dtype, kernel_.registers[reg].vector);
    reg = stmt.dst;
    body_->Append(std::move(stmt));
  }
  body_->Define(reduce.output(), reg);
}

void Lowering::EmitSweep(int sweep) {
  const std::vector<const Node*> reductions = ReductionsOf(sweep);
  if (!reductions.empty() || HasInnerResults(sweep)) {
    std::vector<int> totals;
    EmitLoops(sweep, reductions, &totals);
    for (size_t i = 0; i < reductions.size(); ++i) {
      DefineResult(*reductions[i], totals[i]);
    }
  }
  EmitOuterResults(sweep);
}

// The grid of the kept axes with others, but for absent ones (-1), before its
// vector axis.
std::vector<int> Lowering::WithAxes(std::initializer_list<int> axes) const {
  std::vector<int> grid = grid_;
  for (int axis : axes) {
    if (axis >= 0) grid.insert(grid.end() - (vector_grid_ ? 1 : 0), axis);
  }
  return grid;
}

// Position among the kept elements, row-major over the grid axes.
Index Lowering::KeptIndex() const {
  Index index;
  int64_t stride = 1;
  for (size_t i = grid_.size(); i-- > 0;) {
    index.terms.push_back({grid_[i], stride});
    stride *= kernel_.axes[grid_[i]].extent;
  }
  return index;
}

void Lowering::LoadEarlierResults(int sweep) {
  for (int s = 0; s < sweep; ++s) {
    for (const Node* reduce : ReductionsOf(s)) {
      const int buffer = result_scratch_.at(reduce->output());
      body_->Define(reduce->output(),
                    body_->LoadScratch(buffer, KeptIndex(),
                                       kernel_.buffers[buffer].dtype));
    }
  }
}

void Lowering::EmitChunkedSweep(int sweep) {
  const std::vector<const Node*> reductions = ReductionsOf(sweep);
  std::vector<int> partials;
  const int64_t chunks = kernel_.axes[chunk_axis_].extent;
  if (!reductions.empty() || HasInnerResults(sweep)) {
    body_->BeginPhase(WithAxes({chunk_axis_, row_axis_}));
    LoadEarlierResults(sweep);
    std::vector<int> totals;
    EmitLoops(sweep, reductions, &totals);
    for (int total : totals) {
      partials.push_back(AddScratch("partial", kernel_.registers[total].dtype,
                                    chunks * kept_elements_));
      Stmt store{.kind = StmtKind::kStore};
      store.buffer = partials.back();
      store.index = KeptIndex();
      store.index.terms.push_back({chunk_axis_, kept_elements_});
      store.src[0] = total;
      body_->Append(std::move(store));
    }
    body_->EndPhase();
  }
  if (reductions.empty() && !HasOuterResults(sweep)) return;
  body_->BeginPhase(reductions.empty() ? grid_ : WithAxes({combined_rows_}));
  LoadEarlierResults(sweep);
  if (!reductions.empty()) EmitCombination(sweep, reductions, partials);
  EmitOuterResults(sweep);
  body_->EndPhase();
}

// Combines what the chunks left and, but for the last sweep, keeps it.
void Lowering::EmitCombination(int sweep,
                               const std::vector<const Node*>& reductions,
                               const std::vector<int>& partials) {
  Index part_index = KeptIndex();
  int64_t rows = 1;
  if (combined_rows_ >= 0) {
    rows = kernel_.axes[combined_rows_].extent;
    part_index.terms.push_back({combined_rows_, kept_elements_});
  }
  part_index.terms.push_back({combined_loop_, rows * kept_elements_});
  std::vector<int> totals;
  for (const Node* reduce : reductions) {
    totals.push_back(InitAccumulator(*reduce, vector_grid_));
  }
  body_->OpenLoop(combined_loop_);
  for (size_t i = 0; i < reductions.size(); ++i) {
    const int part = body_->LoadScratch(partials[i], part_index,
                                        kernel_.buffers[partials[i]].dtype);
    Accumulate(*reductions[i], totals[i], part);
  }
  body_->CloseLoop();
  for (size_t i = 0; i < reductions.size(); ++i) {
    int total = totals[i];
    if (combined_rows_ >= 0) total = EmitBlockReduction(*reductions[i], total);
    DefineResult(*reductions[i], total);
    if (sweep + 1 < domain_.num_sweeps) KeepResult(*reductions[i]);
  }
}

// For the phases of later sweeps.
void Lowering::KeepResult(const Node& reduce) {
  const int reg = body_->Eval(reduce.output());
  const int buffer =
      AddScratch("result", kernel_.registers[reg].dtype, kept_elements_);
  result_scratch_[reduce.output()] = buffer;
  Stmt store{.kind = StmtKind::kStore};
  store.buffer = buffer;
  store.index = KeptIndex();
  store.src[0] = reg;
  body_->Append(std::move(store));
}

// A result may overwrite an operand of its own type when every read of the
// operand is at the index of the write, and none comes later.
std::vector<LoweredKernel::Alias> Lowering::FindAliases() const {
  std::vector<LoweredKernel::Alias> aliases;
  const int operands = static_cast<int>(body_graph_.inputs().size());
  for (const FusionBody::Touch& store : body_->stores()) {
    const int result = store.buffer - operands;
    const ir::TensorType& type = body_graph_.outputs()[result].value->type();
    for (int operand = 0; operand < operands; ++operand) {
      if (body_graph_.input(operand)->type() != type) continue;
      const bool safe = std::all_of(
          body_->loads().begin(), body_->loads().end(),
          [&](const FusionBody::Touch& load) {
            return load.buffer != operand ||
                   (load.index == store.index && load.time <= store.time);
          });
      if (safe) aliases.push_back({operand, result});
    }
  }
  return aliases;
}

}  // namespace

LoweredKernel LowerBody(const ir::Graph& body, const ir::Target& target,
                        bool eager) {
  return Lowering(body, target, eager).Run();
}

}  // namespace fusor::codegen
