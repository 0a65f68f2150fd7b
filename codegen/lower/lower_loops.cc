#include "codegen/lower/lower_loops.h"

#include <algorithm>
#include <set>
#include <unordered_set>

#include "codegen/lower/body_emitter.h"
#include "codegen/lower/loop_nest.h"
#include "codegen/lower/loop_schedule.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "passes/fusion/iteration_domain.h"

namespace fusor::codegen {
namespace {

using ir::DType;
using ir::FusionKind;
using ir::Node;
using ir::Value;

// Returns the accumulator dtype: at least f32 for floats, i32 for u8.
DType AccumulatorDType(DType dtype) {
  if (dtype == DType::kF16 || dtype == DType::kBF16) return DType::kF32;
  return dtype == DType::kU8 ? DType::kI32 : dtype;
}

// Lowers one body. Plans the loops (loop_schedule.h), then emits every pass
// over the reduction axes. All passes share one phase. If the reduction is
// split into chunks, each pass instead has a phase that stores partial results
// and a phase that combines them.
class Lowering {
 public:
  Lowering(const ir::Graph& body, const ir::Target& target, bool eager)
      : body_graph_(body), target_(target), eager_(eager) {}

  LoweredKernel Run();

 private:
  void AddBuffers();
  int AddScratch(const std::string& name, DType dtype, int64_t elements);

  void EmitMap();
  void EmitSweep(int sweep);
  void EmitChunkedSweep(int sweep);
  void EmitCombination(int sweep, const std::vector<const Node*>& reductions,
                       const std::vector<int>& partials);
  void KeepResult(const Node& reduce);
  int EmitLaneReduction(const Node& reduce, int reg);
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
  passes::IterationDomain domain_;
  Kernel kernel_;
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
  const bool ok = passes::AnalyzeDomain(nodes, results, &domain_, &reason);
  FUSOR_ASSERT(ok, "fusion of {} nodes: {}", nodes.size(), reason);
  const std::vector<Access> accesses =
      BodyEmitter::CollectAccesses(body_graph_, domain_);
  // Fusion changes what else the loops read. With eager rounding this must not
  // change the bits of a sum, so reduction axes are not merged.
  nest_ = std::make_unique<LoopNest>(domain_, accesses,
                                     /*merge_folded=*/!eager_);
  body_ = std::make_unique<BodyEmitter>(body_graph_, domain_, *nest_, kernel_,
                                        eager_);
  kernel_.name = "fusion";
  kernel_.contract = !eager_;
  AddBuffers();
  plan_ = domain_.has_reduction ? ScheduleReduction(*nest_, target_, kernel_)
                                : ScheduleMap(*nest_, target_, kernel_);
  body_->SetParts(plan_.parts);
  if (!domain_.has_reduction) {
    EmitMap();
  } else {
    if (plan_.chunk_axis < 0) body_->BeginPhase(WithAxes({plan_.row_axis}));
    for (int s = 0; s < domain_.num_sweeps; ++s) {
      if (plan_.chunk_axis < 0) {
        EmitSweep(s);
      } else {
        EmitChunkedSweep(s);
      }
    }
    if (plan_.chunk_axis < 0) body_->EndPhase();
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

int Lowering::AddScratch(const std::string& name, DType dtype,
                         int64_t elements) {
  kernel_.buffers.push_back({name, dtype, elements, true, true});
  return static_cast<int>(kernel_.buffers.size()) - 1;
}

void Lowering::EmitMap() {
  body_->BeginPhase(plan_.grid);
  for (int axis : plan_.loops) body_->OpenLoop(axis);
  std::vector<int> regs;
  for (const ir::Output& output : body_graph_.outputs()) {
    regs.push_back(body_->Eval(output.value));
  }
  for (size_t i = 0; i < regs.size(); ++i) StoreResult(i);
  for (size_t i = 0; i < plan_.loops.size(); ++i) body_->CloseLoop();
  body_->EndPhase();
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
    Accumulate(*reductions[i], accumulators[i], operands[i]);
  }
  for (size_t i : outputs) StoreResult(i);
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
  for (size_t i = 0; i < plan_.loops.size(); ++i) {
    if (two_level && i + 1 == plan_.loops.size()) {
      run.clear();
      for (const Node* reduce : reductions) {
        run.push_back(InitAccumulator(*reduce, vector));
      }
    }
    body_->OpenLoop(plan_.loops[i]);
  }
  EmitInnermost(sweep, reductions, run);
  for (size_t i = plan_.loops.size(); i-- > 0;) {
    body_->CloseLoop();
    if (!two_level || i + 1 != plan_.loops.size()) continue;
    for (size_t r = 0; r < reductions.size(); ++r) {
      Accumulate(*reductions[r], (*totals)[r], run[r]);
    }
  }
  if (plan_.row_axis >= 0) {
    for (size_t r = 0; r < reductions.size(); ++r) {
      (*totals)[r] = EmitBlockReduction(*reductions[r], (*totals)[r]);
    }
  }
  if (!plan_.vector_loop) return;
  for (size_t r = 0; r < reductions.size(); ++r) {
    (*totals)[r] = EmitLaneReduction(*reductions[r], (*totals)[r]);
  }
}

int Lowering::EmitLaneReduction(const Node& reduce, int reg) {
  Stmt stmt{.kind = StmtKind::kReduceLanes};
  stmt.op = ir::NodeScalar(reduce);
  stmt.src[0] = reg;
  const int result = stmt.dst =
      body_->NewRegister(kernel_.registers[reg].dtype, false);
  body_->Append(std::move(stmt));
  return result;
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
  const bool rounds = eager_ || MustRound(ir::ScalarOp::kIdentity, dtype);
  if (rounds && dtype != kernel_.registers[reg].dtype) {
    Stmt stmt{.kind = StmtKind::kCompute};
    stmt.round = true;
    stmt.src[0] = reg;
    stmt.dst = body_->NewRegister(dtype, kernel_.registers[reg].vector);
    reg = stmt.dst;
    body_->Append(std::move(stmt));
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
void Lowering::HoldResults(int sweep) {
  if (!target_.simt) return;
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
    if (BytesRead(sweep, more) >= BytesRead(sweep, held)) continue;
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
      body_->Define(reduce->output(),
                    body_->LoadScratch(buffer, KeptIndex(),
                                       kernel_.buffers[buffer].dtype));
    }
  }
}

void Lowering::EmitChunkedSweep(int sweep) {
  HoldResults(sweep);
  const std::vector<const Node*> reductions = ReductionsOf(sweep);
  std::vector<int> partials;
  const int64_t chunks = kernel_.axes[plan_.chunk_axis].extent;
  if (!reductions.empty() || HasInnerResults(sweep)) {
    body_->BeginPhase(WithAxes({plan_.chunk_axis, plan_.row_axis}));
    LoadEarlierResults(sweep);
    std::vector<int> totals;
    EmitLoops(sweep, reductions, &totals);
    for (int total : totals) {
      partials.push_back(AddScratch("partial", kernel_.registers[total].dtype,
                                    chunks * plan_.kept_elements));
      Stmt store{.kind = StmtKind::kStore};
      store.buffer = partials.back();
      store.index = PartialIndex(plan_.chunk_axis);
      store.src[0] = total;
      body_->Append(std::move(store));
    }
    body_->EndPhase();
  }
  if (reductions.empty() && !HasOuterResults(sweep)) return;
  body_->BeginPhase(reductions.empty() ? plan_.grid : EnterCombination());
  LoadEarlierResults(sweep);
  if (!reductions.empty()) EmitCombination(sweep, reductions, partials);
  EmitOuterResults(sweep);
  body_->EndPhase();
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
  body_->OpenLoop(plan_.combined_loop);
  for (size_t i = 0; i < reductions.size(); ++i) {
    const int part = body_->LoadScratch(partials[i], part_index,
                                        kernel_.buffers[partials[i]].dtype);
    Accumulate(*reductions[i], totals[i], part);
  }
  body_->CloseLoop();
  for (size_t i = 0; i < reductions.size(); ++i) {
    int total = totals[i];
    if (combining_) total = EmitLaneReduction(*reductions[i], total);
    if (plan_.combined_rows >= 0) {
      total = EmitBlockReduction(*reductions[i], total);
    }
    DefineResult(*reductions[i], total);
    if (sweep + 1 < domain_.num_sweeps) KeepResult(*reductions[i]);
  }
}

// Stores a result in scratch memory for the phases of later passes.
void Lowering::KeepResult(const Node& reduce) {
  const int reg = body_->Eval(reduce.output());
  const int buffer =
      AddScratch("result", kernel_.registers[reg].dtype, plan_.kept_elements);
  result_scratch_[reduce.output()] = buffer;
  Stmt store{.kind = StmtKind::kStore};
  store.buffer = buffer;
  store.index = KeptIndex();
  store.src[0] = reg;
  body_->Append(std::move(store));
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
      const bool safe = std::all_of(
          body_->loads().begin(), body_->loads().end(),
          [&](const BodyEmitter::Touch& load) {
            return load.buffer != operand ||
                   (load.index == store.index && load.time <= store.time);
          });
      if (safe) aliases.push_back({operand, result});
    }
  }
  return aliases;
}

}  // namespace

LoweredKernel LowerLoops(const ir::Graph& body, const ir::Target& target,
                         bool eager) {
  return Lowering(body, target, eager).Run();
}

}  // namespace fusor::codegen
