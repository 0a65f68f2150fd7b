#include <algorithm>
#include <optional>
#include <utility>

#include "codegen/kernel/kernel_builder.h"
#include "codegen/lower/loop_nest.h"
#include "codegen/lower/lower.h"
#include "ir/support/error.h"
#include "passes/fusion/iteration_domain.h"

namespace fusor::codegen {
namespace {

class ScatterLowering {
 public:
  ScatterLowering(const ir::Graph& body, const ir::Target& target)
      : body_(body), node_(*body.nodes()[0]), builder_("scatter", target) {
    for (const ir::Input& input : body.inputs()) {
      builder_.AddBuffer(*input.value, BufferUse::kRead);
    }
    const ir::TensorType& type = node_.output()->type();
    result_ = builder_.AddBuffer("result", type.dtype, type.num_elements(),
                                 BufferUse::kWritten);
  }

  // Adds a phase that stores the constant to every element of the result.
  void Fill(double value) {
    const ir::TensorType& type = node_.output()->type();
    const ir::TensorType flat{type.dtype, {type.num_elements()}, {}};
    AddPhase(
        flat, {{flat, Identity(flat.shape)}},
        {.kind = StmtKind::kConstant, .constant = RoundTo(type.dtype, value)});
  }

  // Adds a phase that stores operand `i` at result indices low + step * index.
  void Place(size_t i, const std::vector<int64_t>& low,
             const std::vector<int64_t>& step) {
    const ir::TensorType& type = node_.input(i)->type();
    ir::IndexMap target(type.rank());
    for (size_t d = 0; d < type.rank(); ++d) {
      target[d] = {static_cast<int>(d), step[d], low[d]};
      if (type.shape[d] == 1) target[d] = {-1, 1, low[d]};
    }
    AddPhase(type,
             {{node_.output()->type(), target}, {type, Identity(type.shape)}},
             {.kind = StmtKind::kLoad, .buffer = node_.input(i)->index()});
  }

  // Blocks suit the operand with the least fastest extent.
  LoweredKernel Finish() {
    std::optional<int64_t> least;
    for (const PhasePlan& plan : phases_) {
      if (plan.accesses.size() < 2 || plan.nest.fastest() < 0) continue;
      const int64_t extent = plan.nest.axes()[plan.nest.fastest()].extent;
      least = std::min(least.value_or(extent), extent);
    }
    builder_.SizeBlock(least.value_or(1));
    for (PhasePlan& plan : phases_) EmitPhase(std::move(plan));
    return OneBufferPerTensor(std::move(builder_).Build(), body_);
  }

 private:
  struct PhasePlan {
    ir::TensorType type;
    std::vector<Access> accesses;  // of the result; of a load
    Stmt source;
    LoopNest nest;
  };

  static ir::IndexMap Identity(const ir::Shape& shape) {
    ir::IndexMap map(shape.size());
    for (size_t d = 0; d < shape.size(); ++d) {
      if (shape[d] != 1) map[d].dim = static_cast<int>(d);
    }
    return map;
  }

  // Adds a phase over the elements of `type`. It stores the result of `source`
  // at accesses[0]; a load reads accesses[1].
  void AddPhase(const ir::TensorType& type, std::vector<Access> accesses,
                Stmt source) {
    passes::IterationDomain domain;
    domain.extents = type.shape;
    domain.layout = type.layout;
    domain.folded.assign(type.rank(), false);
    LoopNest nest(domain, accesses);
    phases_.push_back(
        {type, std::move(accesses), std::move(source), std::move(nest)});
  }

  void EmitPhase(PhasePlan plan) {
    std::vector<int> grid;
    const std::vector<std::vector<AxisPart>> parts = AddAxes(plan.nest, grid);
    const auto phase = builder_.BeginPhase(std::move(grid));
    Stmt& source = plan.source;
    if (plan.accesses.size() > 1) {
      source.index = plan.nest.Offset(plan.accesses[1], parts);
    }
    builder_.Store(result_, plan.nest.Offset(plan.accesses[0], parts),
                   builder_.Define(std::move(source), plan.type.dtype));
  }

  // Adds all axes of the nest to the grid. On a GPU one of the others than the
  // fastest gives the rows of a block, or a part of the only one.
  std::vector<std::vector<AxisPart>> AddAxes(const LoopNest& nest,
                                             std::vector<int>& grid) {
    const std::vector<LoopAxis>& axes = nest.axes();
    const int64_t limit = builder_.MaxRows();
    const int64_t lanes = builder_.kernel().lanes;
    if (axes.size() == 1 && limit > 1 && axes[0].extent % lanes == 0) {
      const int64_t groups = axes[0].extent / lanes;
      std::vector<AxisPart> parts = builder_.AddGridAxis(
          grid, axes[0].name, groups, LargestDivisor(groups, limit));
      for (AxisPart& part : parts) part.factor *= lanes;
      grid.push_back(builder_.AddAxis("lane", lanes, AxisKind::kVector));
      parts.push_back({grid.back(), 1});
      return {std::move(parts)};
    }
    std::vector<int64_t> extents;
    for (size_t a = 0; a < axes.size(); ++a) {
      const bool vector = static_cast<int>(a) == nest.fastest();
      extents.push_back(vector ? 1 : axes[a].extent);
    }
    const size_t before = nest.fastest() > 0 ? nest.fastest() - 1 : 0;
    const size_t rowed = extents.empty() ? 0 : RowAxis(extents, before, limit);
    std::vector<std::vector<AxisPart>> parts;
    for (size_t a = 0; a < axes.size(); ++a) {
      parts.push_back(builder_.AddGridAxis(
          grid, axes[a].name, axes[a].extent,
          LargestDivisor(extents[a], a == rowed ? limit : 1),
          VectorIf(static_cast<int>(a) == nest.fastest()),
          axes[a].name + "_row"));
    }
    return parts;
  }

  const ir::Graph& body_;
  const ir::Node& node_;
  KernelBuilder builder_;
  int result_ = -1;
  std::vector<PhasePlan> phases_;
};

}  // namespace

LoweredKernel LowerDataMovement(const ir::Graph& body,
                                const ir::Target& target) {
  const ir::Node& node = *body.nodes()[0];
  ScatterLowering lowering(body, target);
  const size_t rank = node.output()->type().rank();
  if (node.kind() == ir::OpKind::kPad) {
    lowering.Fill(node.attrs().Float("value"));
    std::vector<int64_t> step = node.attrs().Ints("interior");
    for (int64_t& s : step) ++s;
    lowering.Place(0, node.attrs().Ints("low"), step);
    return lowering.Finish();
  }
  std::vector<int64_t> low(rank, 0);
  if (node.kind() == ir::OpKind::kCopy) {
    lowering.Place(0, low, std::vector<int64_t>(rank, 1));
    return lowering.Finish();
  }
  FUSOR_ASSERT(node.kind() == ir::OpKind::kConcat, "{} is not a scatter",
               node.op_name());
  const int64_t dim = node.attrs().Int("dim");
  for (size_t i = 0; i < node.num_inputs(); ++i) {
    lowering.Place(i, low, std::vector<int64_t>(rank, 1));
    low[dim] += node.input(i)->type().shape[dim];
  }
  return lowering.Finish();
}

}  // namespace fusor::codegen
