#include "codegen/lower/contraction_emitter.h"

#include <utility>
#include <vector>

#include "codegen/kernel/access_analysis.h"
#include "ir/support/error.h"

namespace fusor::codegen {
namespace {

using ir::DType;
using ir::Node;

// Returns the dtype in which products are added.
DType SumDType(const Node& node) {
  DType dtype = AccumulatorDType(node.output()->type().dtype);
  for (int i = 0; i < 2; ++i) {
    if (node.input(i)->type().dtype == DType::kF64) dtype = DType::kF64;
  }
  return dtype;
}

passes::Contraction Analyze(const ir::Graph& body) {
  std::string reason;
  auto contraction = passes::AnalyzeContraction(body, &reason);
  FUSOR_ASSERT(contraction.has_value(), "a contraction: {}", reason);
  return *std::move(contraction);
}

}  // namespace

ContractionEmitter::ContractionEmitter(const ir::Graph& body,
                                       const ir::Target& target, bool eager)
    : body_(body),
      target_(target),
      eager_(eager),
      contraction_(Analyze(body)),
      builder_("contraction", target, !eager),
      dtype_(SumDType(node())) {
  builder_.AddBuffers(body);
  std::vector<Access> accesses =
      BodyEmitter::CollectAccesses(body, contraction_.domain);
  accesses.push_back(FactorAccess(0));
  accesses.push_back(FactorAccess(1));
  accesses.push_back(ResultAccess());
  if (node().num_inputs() == 3) {
    accesses.push_back({node().input(2)->type(), contraction_.bias});
  }
  nest_ = std::make_unique<LoopNest>(contraction_.domain, accesses);
  emitter_ = std::make_unique<BodyEmitter>(body, contraction_.domain, *nest_,
                                           builder_, eager);
}

Index ContractionEmitter::FactorIndex(int factor) const {
  Parts unit(nest_->axes().size());
  for (size_t a = 0; a < unit.size(); ++a) {
    unit[a] = {{static_cast<int>(a), 1}};
  }
  return nest_->Offset(FactorAccess(factor), unit);
}

int ContractionEmitter::AddPart(int nest_axis, std::string name, int64_t extent,
                                int64_t factor, AxisKind kind) {
  const int axis = builder_.AddAxis(std::move(name), extent, kind);
  parts_[nest_axis].push_back({axis, factor});
  return axis;
}

int ContractionEmitter::EmitFactor(int factor) {
  emitter_->SetParts(parts_);
  return emitter_->EvalAt(node().input(factor), contraction_.factors[factor]);
}

int ContractionEmitter::RoundedTo(int reg, DType dtype) {
  if (dtype == builder_.kernel().registers[reg].dtype && !eager_) return reg;
  return builder_.Compute(ir::ScalarOp::kIdentity, dtype, {reg}, eager_);
}

// Stores the outputs that are elements of columns, or all others.
void ContractionEmitter::StoreOutputs(bool of_columns) {
  const ir::IndexMap result = ResultAccess().map;
  const auto stores = [&](const ir::Output& output) {
    return (contraction_.domain.maps.at(output.value) != result) == of_columns;
  };
  for (const ir::Output& output : body_.outputs()) {
    if (stores(output)) emitter_->Eval(output.value);
  }
  for (size_t i = 0; i < body_.outputs().size(); ++i) {
    if (stores(body_.outputs()[i])) emitter_->StoreResult(i);
  }
}

std::vector<int> ContractionEmitter::EmitResults(int reg) {
  emitter_->SetParts(parts_);
  if (node().num_inputs() == 3) {
    const int bias = emitter_->EvalAt(node().input(2), contraction_.bias);
    reg = builder_.Compute(ir::ScalarOp::kAdd, dtype_, {reg, bias});
  }
  emitter_->Define(node().output(),
                   RoundedTo(reg, node().output()->type().dtype));
  std::vector<int> summands;
  for (const Node* sum : contraction_.column_sums) {
    summands.push_back(emitter_->Eval(sum->input(0)));
  }
  StoreOutputs(false);
  return summands;
}

void ContractionEmitter::EmitColumnResults(const std::vector<int>& sums) {
  emitter_->SetParts(parts_);
  for (size_t i = 0; i < sums.size(); ++i) {
    const ir::Value* value = contraction_.column_sums[i]->output();
    emitter_->Define(value, RoundedTo(sums[i], value->type().dtype));
  }
  StoreOutputs(true);
}

void ContractionEmitter::AddPartialBuffer(int64_t chunks) {
  chunks_ = chunks;
  partial_ = builder_.AddBuffer("partial", dtype_,
                                chunks * node().output()->type().num_elements(),
                                BufferUse::kScratch);
}

Index ContractionEmitter::PartialIndex(int chunk) const {
  Index index = nest_->Offset(ResultAccess(), parts_);
  index.terms.push_back({chunk, node().output()->type().num_elements()});
  return index;
}

void ContractionEmitter::StorePartial(int chunk, int reg) {
  builder_.Store(partial_, PartialIndex(chunk), reg);
}

void ContractionEmitter::EmitCombination(int vector_axis) {
  parts_.assign(nest_->axes().size(), {});
  const int64_t max_rows = builder_.MaxRows();
  std::vector<int64_t> extents;  // of axes that can give a block its rows
  for (size_t a = 0; a < nest_->axes().size(); ++a) {
    const LoopAxis& axis = nest_->axes()[a];
    const bool scalar = !axis.folded && static_cast<int>(a) != vector_axis;
    extents.push_back(scalar ? axis.extent : 1);
  }
  const size_t row_axis = RowAxis(extents, 0, max_rows);
  std::vector<int> grid;
  for (size_t a = 0; a < extents.size(); ++a) {
    const LoopAxis& axis = nest_->axes()[a];
    if (axis.folded) continue;
    parts_[a] = builder_.AddGridAxis(
        grid, axis.name, axis.extent,
        a == row_axis ? LargestDivisor(extents[a], max_rows) : 1,
        VectorIf(static_cast<int>(a) == vector_axis));
  }
  const int chunk = builder_.AddAxis("chunk", chunks_);
  const auto phase = builder_.BeginPhase(grid);
  const int sum = builder_.Accumulator(ir::ScalarOp::kAdd, dtype_);
  {
    const auto loop = builder_.BeginLoop(chunk);
    builder_.Accumulate(sum, builder_.Load(partial_, PartialIndex(chunk)));
  }
  EmitResults(sum);
}

LoweredKernel ContractionEmitter::Build() {
  LoweredKernel lowered =
      OneBufferPerTensor(std::move(builder_).Build(), body_);
  const auto operands = static_cast<int>(body_.inputs().size());
  for (int operand = 0; operand < operands; ++operand) {
    for (size_t r = 0; r < body_.outputs().size(); ++r) {
      const int result = static_cast<int>(r);
      if (MayOverwrite(lowered.kernel, operand, operands + result)) {
        lowered.in_place.push_back({operand, result});
      }
    }
  }
  return lowered;
}

}  // namespace fusor::codegen
