#include <algorithm>
#include <set>
#include <unordered_set>

#include "codegen/lower/body_emitter.h"
#include "codegen/lower/loop_nest.h"
#include "codegen/lower/loop_schedule.h"
#include "codegen/lower/lower.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "passes/fusion/iteration_domain.h"

namespace fusor::codegen {
namespace {

using ir::DType;
using ir::FusionKind;
using ir::Node;
using ir::Value;

// Lowers one body, one part of its domain after the other. Plans the loops
// (loop_schedule.h), then emits every pass over the reduction axes. All passes
// share one phase. If the reduction is split into chunks, each pass instead has
// a phase that stores partial results and a phase that combines them.
class Lowering {
 public:
  Lowering(const ir::Graph& body, const ir::Target& target, bool eager,
           bool reload)
      : body_graph_(body),
        target_(target),
        eager_(eager),
        reload_(reload),
        builder_("fusion", target, !eager) {}

  LoweredKernel Run();

 private:
  std::vector<Access> CollectAccesses(
      const passes::IterationDomain& whole,
      std::span<const passes::IterationDomain> parts) const;
  void EmitPart(const passes::IterationDomain& part,
                std::span<const Access> accesses);
  void EmitMap();
  void EmitReduction();
  void EmitSweep(int sweep);
  std::vector<int> ChunkGrid() const;
  void EmitChunkedSweep(int sweep);
  void EmitCombination(int sweep, const std::vector<const Node*>& reductions,
                       const std::vector<int>& partials);
  void KeepResult(const Node& reduce);
  std::vector<int> WithAxes(std::initializer_list<int> axes) const;
  void EmitLoops(int sweep, const std::vector<const Node*>& reductions,
                 std::vector<int>* totals);
  void EmitInnermost(int sweep, const std::vector<const Node*>& reductions,
                     const std::vector<int>& accumulators);
  void EmitOuterResults(int sweep);
  void DefineResult(const Node& reduce, int reg);
  int InitAccumulator(const Node& reduce, bool vector);
  std::vector<const Node*> ReductionsOf(int sweep) const;
  bool HasInnerResults(int sweep) const;
  bool HasOuterResults(int sweep) const;
  bool IsOuterResult(const Value* value) const;
  void HoldResults(int sweep);
  int64_t BytesRead(int sweep, const std::set<const Value*>& held) const;
  Index KeptIndex() const;
  Index PartialIndex(int axis) const;
  std::vector<int> EnterCombination();
  void LeaveCombination();
  void LoadEarlierResults(int sweep);
  std::vector<LoweredKernel::Alias> FindAliases() const;

  const ir::Graph& body_graph_;
  const ir::Target& target_;
  const bool eager_;
  const bool reload_;
  passes::IterationDomain domain_;  // a part
  KernelBuilder builder_;
  const Kernel& kernel_ = builder_.kernel();  // so far
  std::unique_ptr<LoopNest> nest_;
  std::unique_ptr<BodyEmitter> body_;
  LoopSchedule plan_;
  bool combining_ = false;  // in a phase with plan_.combined_grid
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
  passes::IterationDomain whole;
  const bool ok = passes::AnalyzeDomain(nodes, results, &whole, &reason);
  FUSOR_ASSERT(ok, "fusion of {} nodes: {}", nodes.size(), reason);
  const std::vector<passes::IterationDomain> parts =
      passes::SplitAtConcats(nodes, results, whole);
  const std::vector<Access> accesses = CollectAccesses(whole, parts);
  builder_.AddBuffers(body_graph_);
  for (const passes::IterationDomain& part : parts) EmitPart(part, accesses);
  LoweredKernel lowered =
      OneBufferPerTensor(std::move(builder_).Build(), body_graph_);
  // Another part may read what a part stores.
  if (parts.size() == 1) lowered.in_place = FindAliases();
  return lowered;
}

// Returns what all parts access, so that they merge the same axes: the lanes of
// a GPU's kernel depend on the fastest axis.
std::vector<Access> Lowering::CollectAccesses(
    const passes::IterationDomain& whole,
    std::span<const passes::IterationDomain> parts) const {
  std::vector<Access> accesses;
  for (const passes::IterationDomain& part : parts) {
    for (Access& access : BodyEmitter::CollectAccesses(body_graph_, part)) {
      accesses.push_back(std::move(access));
    }
    for (size_t d = 0; d < part.extents.size(); ++d) {
      if (part.extents[d] == whole.extents[d]) continue;
      accesses.push_back({{DType::kI64, {2}, {}}, {{static_cast<int>(d)}}});
    }
  }
  return accesses;
}

void Lowering::EmitPart(const passes::IterationDomain& part,
                        std::span<const Access> accesses) {
  domain_ = part;
  // Fusion changes what else the loops read. With eager rounding this must not
  // change the bits of a sum, so reduction axes are not merged.
  nest_ = std::make_unique<LoopNest>(domain_, accesses,
                                     /*merge_folded=*/!eager_);
  body_ = std::make_unique<BodyEmitter>(body_graph_, domain_, *nest_, builder_,
                                        eager_);
  plan_ = domain_.has_reduction ? ScheduleReduction(*nest_, target_, builder_)
                                : ScheduleMap(*nest_, target_, builder_);
  body_->SetParts(plan_.parts);
  if (domain_.has_reduction) {
    EmitReduction();
  } else {
    EmitMap();
  }
}

void Lowering::EmitMap() {
  const auto phase = builder_.BeginPhase(plan_.grid);
  std::vector<KernelBuilder::Scope> loops;
  for (int axis : plan_.loops) loops.push_back(builder_.BeginLoop(axis));
  for (const ir::Output& output : body_graph_.outputs()) {
    body_->Eval(output.value);
  }
  for (size_t i = 0; i < body_graph_.outputs().size(); ++i) {
    body_->StoreResult(i);
  }
}

void Lowering::EmitReduction() {
  if (plan_.chunk_axis >= 0) {
    for (int s = 0; s < domain_.num_sweeps; ++s) EmitChunkedSweep(s);
    return;
  }
  const auto phase = builder_.BeginPhase(WithAxes({plan_.row_axis}));
  for (int s = 0; s < domain_.num_sweeps; ++s) EmitSweep(s);
}

std::vector<const Node*> Lowering::ReductionsOf(int sweep) const {
  std::vector<const Node*> reductions;
  for (const auto& node : body_graph_.nodes()) {
    if (node->op().fusion == FusionKind::kReduce &&
        domain_.maps.contains(node->output()) &&
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
  for (size_t i : outputs) body_->StoreResult(i);
}

int Lowering::InitAccumulator(const Node& reduce, bool vector) {
  const int reg = builder_.Accumulator(
      ir::NodeScalar(reduce), AccumulatorDType(reduce.output()->type().dtype),
      vector);
  builder_.NameValue(reg, *reduce.output());
  return reg;
}

// Emits what the pass computes per domain point. All loads precede all stores.
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
    builder_.Accumulate(accumulators[i], operands[i]);
  }
  for (size_t i : outputs) body_->StoreResult(i);
}

// Emits the loops of one pass, with two-level summation: each run of the
// innermost loop has separate accumulators, which are added to the pass's.
void Lowering::EmitLoops(int sweep, const std::vector<const Node*>& reductions,
                         std::vector<int>* totals) {
  body_->set_time(2 * sweep);
  const bool vector = plan_.vector_grid || plan_.vector_loop;
  for (const Node* reduce : reductions) {
    totals->push_back(InitAccumulator(*reduce, vector));
  }
  const bool two_level = plan_.loops.size() >= 2;
  std::vector<int> run = *totals;
  std::vector<KernelBuilder::Scope> loops;
  for (size_t i = 0; i < plan_.loops.size(); ++i) {
    if (two_level && i + 1 == plan_.loops.size()) {
      run.clear();
      for (const Node* reduce : reductions) {
        run.push_back(InitAccumulator(*reduce, vector));
      }
    }
    loops.push_back(builder_.BeginLoop(plan_.loops[i]));
  }
  EmitInnermost(sweep, reductions, run);
  if (two_level) {
    loops.pop_back();
    for (size_t r = 0; r < reductions.size(); ++r) {
      builder_.Accumulate((*totals)[r], run[r]);
    }
  }
  loops.clear();
  for (int& total : *totals) {
    if (plan_.row_axis >= 0) total = builder_.ReduceBlock(total);
  }
  for (int& total : *totals) {
    if (plan_.vector_loop) total = builder_.ReduceLanes(total);
  }
}

void Lowering::DefineResult(const Node& reduce, int reg) {
  const DType dtype = reduce.output()->type().dtype;
  // u8 values must wrap around.
  const bool rounds = eager_ || dtype == DType::kU8;
  if (rounds && dtype != kernel_.registers[reg].dtype) {
    reg = builder_.Compute(ir::ScalarOp::kIdentity, dtype, {reg}, true);
  }
  body_->Define(reduce.output(), reg);
}

// Returns the bytes of the tensors that a pass reads if it loads the values in
// `held` instead of recomputing them.
int64_t Lowering::BytesRead(int sweep,
                            const std::set<const Value*>& held) const {
  std::vector<const Value*> open;
  for (const Node* reduce : ReductionsOf(sweep))
    open.push_back(reduce->input(0));
  for (const ir::Output& output : body_graph_.outputs()) {
    if (!IsOuterResult(output.value) &&
        domain_.sweep.at(output.value) == sweep) {
      open.push_back(output.value);
    }
  }
  std::set<const Value*> seen;
  int64_t bytes = 0;
  while (!open.empty()) {
    const Value* value = open.back();
    open.pop_back();
    if (!seen.insert(value).second) continue;
    const Node* node = value->producer();
    if (node == nullptr || held.contains(value)) {
      bytes += value->type().num_bytes();
    } else if (node->op().fusion != FusionKind::kReduce) {
      for (const Value* input : node->inputs()) open.push_back(input);
    }
  }
  return bytes;
}

// Makes the pass load results of earlier passes instead of recomputing them if
// that reads fewer bytes. GPU only: its caches no longer hold the operands.
// With `reload_` loads all of them.
void Lowering::HoldResults(int sweep) {
  if (!target_.simt && !reload_) return;
  std::set<const Value*> held;
  for (size_t i = 0; i < body_graph_.outputs().size(); ++i) {
    const Value* value = body_graph_.outputs()[i].value;
    if (value->producer() == nullptr || IsOuterResult(value) ||
        domain_.sweep.at(value) >= sweep ||
        value->type().dtype == DType::kBool) {
      continue;
    }
    std::set<const Value*> more = held;
    more.insert(value);
    if (!reload_ && BytesRead(sweep, more) >= BytesRead(sweep, held)) continue;
    held = std::move(more);
    body_->Hold(value, static_cast<int>(body_graph_.inputs().size() + i));
  }
}

void Lowering::EmitSweep(int sweep) {
  HoldResults(sweep);
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

// Returns the grid of the parallel axes with `axes`, except absent ones (-1),
// inserted before its vector axis.
std::vector<int> Lowering::WithAxes(std::initializer_list<int> axes) const {
  std::vector<int> grid = plan_.grid;
  for (int axis : axes) {
    if (axis >= 0) grid.insert(grid.end() - (plan_.vector_grid ? 1 : 0), axis);
  }
  return grid;
}

// Returns the position among the output elements, row-major over the grid axes.
Index Lowering::KeptIndex() const {
  const std::vector<int>& grid = combining_ ? plan_.combined_grid : plan_.grid;
  Index index;
  int64_t stride = 1;
  for (size_t i = grid.size(); i-- > 0;) {
    index.terms.push_back({grid[i], stride});
    stride *= kernel_.axes[grid[i]].extent;
  }
  return index;
}

// Returns the index of the partial result of chunk `axis`: element-major if a
// block combines the chunks of one element, otherwise chunk-major.
Index Lowering::PartialIndex(int axis) const {
  Index index = KeptIndex();
  int64_t stride = plan_.kept_elements;
  if (!plan_.combined_grid.empty()) {
    const int64_t chunks = kernel_.axes[plan_.chunk_axis].extent;
    for (Index::Term& term : index.terms) term.coefficient *= chunks;
    stride = 1;
  }
  if (axis == plan_.combined_loop && plan_.combined_rows >= 0) {
    const Axis& rows = kernel_.axes[plan_.combined_rows];
    // Each row reduces a run of the vector axis, or chunks alternate over rows.
    const bool runs = kernel_.axes[axis].vector;
    index.terms.push_back(
        {plan_.combined_rows, stride * (runs ? kernel_.axes[axis].extent : 1)});
    if (!runs) stride *= rows.extent;
  }
  index.terms.push_back({axis, stride});
  return index;
}

// Enters the combining phase and returns its grid.
std::vector<int> Lowering::EnterCombination() {
  if (plan_.combined_grid.empty()) return WithAxes({plan_.combined_rows});
  combining_ = true;
  body_->SetParts(plan_.combined_parts);
  std::vector<int> grid = plan_.combined_grid;
  grid.push_back(plan_.combined_rows);
  return grid;
}

void Lowering::LeaveCombination() {
  combining_ = false;
  body_->SetParts(plan_.parts);
}

void Lowering::LoadEarlierResults(int sweep) {
  for (int s = 0; s < sweep; ++s) {
    for (const Node* reduce : ReductionsOf(s)) {
      const int buffer = result_scratch_.at(reduce->output());
      body_->Define(reduce->output(), builder_.Load(buffer, KeptIndex()));
    }
  }
}

// Returns the grid of a pass over chunks. If kept axes divide rows, the tasks
// of a chunk follow each other: they read and write the same cache lines.
std::vector<int> Lowering::ChunkGrid() const {
  if (target_.simt || !nest_->divides_rows()) {
    return WithAxes({plan_.chunk_axis, plan_.row_axis});
  }
  std::vector<int> grid = plan_.grid;
  grid.insert(grid.begin(), plan_.chunk_axis);
  return grid;
}

void Lowering::EmitChunkedSweep(int sweep) {
  HoldResults(sweep);
  const std::vector<const Node*> reductions = ReductionsOf(sweep);
  std::vector<int> partials;
  const int64_t chunks = kernel_.axes[plan_.chunk_axis].extent;
  if (!reductions.empty() || HasInnerResults(sweep)) {
    const auto phase = builder_.BeginPhase(ChunkGrid());
    LoadEarlierResults(sweep);
    std::vector<int> totals;
    EmitLoops(sweep, reductions, &totals);
    for (int total : totals) {
      partials.push_back(builder_.AddBuffer(
          "partial", kernel_.registers[total].dtype,
          chunks * plan_.kept_elements, BufferUse::kScratch));
      builder_.Store(partials.back(), PartialIndex(plan_.chunk_axis), total);
    }
  }
  if (reductions.empty() && !HasOuterResults(sweep)) return;
  {
    const auto phase = builder_.BeginPhase(
        reductions.empty() ? plan_.grid : EnterCombination());
    LoadEarlierResults(sweep);
    if (!reductions.empty()) EmitCombination(sweep, reductions, partials);
    EmitOuterResults(sweep);
  }
  LeaveCombination();
}

// Combines the partial results of the chunks; keeps totals for later passes.
void Lowering::EmitCombination(int sweep,
                               const std::vector<const Node*>& reductions,
                               const std::vector<int>& partials) {
  const Index part_index = PartialIndex(plan_.combined_loop);
  std::vector<int> totals;
  for (const Node* reduce : reductions) {
    totals.push_back(InitAccumulator(*reduce, plan_.vector_grid));
  }
  {
    const auto loop = builder_.BeginLoop(plan_.combined_loop);
    for (size_t i = 0; i < reductions.size(); ++i) {
      builder_.Accumulate(totals[i], builder_.Load(partials[i], part_index));
    }
  }
  for (size_t i = 0; i < reductions.size(); ++i) {
    int total = totals[i];
    if (combining_) total = builder_.ReduceLanes(total);
    if (plan_.combined_rows >= 0) total = builder_.ReduceBlock(total);
    DefineResult(*reductions[i], total);
    if (sweep + 1 < domain_.num_sweeps) KeepResult(*reductions[i]);
  }
}

// Stores a result in scratch memory for the phases of later passes.
void Lowering::KeepResult(const Node& reduce) {
  const int reg = body_->Eval(reduce.output());
  const int buffer =
      builder_.AddBuffer("result", kernel_.registers[reg].dtype,
                         plan_.kept_elements, BufferUse::kScratch);
  result_scratch_[reduce.output()] = buffer;
  builder_.Store(buffer, KeptIndex(), reg);
}

// Returns the in-place aliases: a result may alias an operand of the same type
// if all loads of the operand have the index of the store and none is later.
std::vector<LoweredKernel::Alias> Lowering::FindAliases() const {
  std::vector<LoweredKernel::Alias> aliases;
  const int operands = static_cast<int>(body_graph_.inputs().size());
  for (const BodyEmitter::Touch& store : body_->stores()) {
    const int result = store.buffer - operands;
    const ir::TensorType& type = body_graph_.outputs()[result].value->type();
    for (int operand = 0; operand < operands; ++operand) {
      if (body_graph_.input(operand)->type() != type) continue;
      const bool safe =
          std::all_of(body_->loads().begin(), body_->loads().end(),
                      [&](const BodyEmitter::Touch& load) {
                        return load.buffer != operand ||
                               (!load.indexed && load.index == store.index &&
                                load.time <= store.time);
                      });
      if (safe) aliases.push_back({operand, result});
    }
  }
  return aliases;
}

}  // namespace

LoweredKernel LowerLoops(const ir::Graph& body, const ir::Target& target,
                         bool eager, bool reload) {
  return Lowering(body, target, eager, reload).Run();
}

}  // namespace fusor::codegen
