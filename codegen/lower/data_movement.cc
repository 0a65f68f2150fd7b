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
    builder_.SizeBlock(Fastest(type));
  }

  // Emits a phase that stores the constant to every element of the result.
  void Fill(double value) {
    const ir::TensorType& type = node_.output()->type();
    const ir::TensorType flat{type.dtype, {type.num_elements()}, {}};
    const std::vector<Access> accesses{{flat, Identity(flat.shape)}};
    EmitPhase(
        flat, accesses,
        {.kind = StmtKind::kConstant, .constant = RoundTo(type.dtype, value)});
  }

  // Emits a phase that stores operand `i` at result indices low + step * index.
  void Place(size_t i, const std::vector<int64_t>& low,
             const std::vector<int64_t>& step) {
    const ir::TensorType& type = node_.input(i)->type();
    ir::IndexMap target(type.rank());
    for (size_t d = 0; d < type.rank(); ++d) {
      target[d] = {static_cast<int>(d), step[d], low[d]};
      if (type.shape[d] == 1) target[d] = {-1, 1, low[d]};
    }
    const std::vector<Access> accesses{{node_.output()->type(), target},
                                       {type, Identity(type.shape)}};
    EmitPhase(type, accesses,
              {.kind = StmtKind::kLoad, .buffer = node_.input(i)->index()});
  }

  LoweredKernel Finish() {
    return OneBufferPerTensor(std::move(builder_).Build(), body_);
  }

 private:
  // Returns the extent of the fastest axis.
  static int64_t Fastest(const ir::TensorType& type) {
    int64_t extent = 1;
    for (const ir::PhysicalAxis& axis : PhysicalAxes(type)) {
      if (axis.extent > 1) extent = axis.extent;
    }
    return extent;
  }

  static ir::IndexMap Identity(const ir::Shape& shape) {
    ir::IndexMap map(shape.size());
    for (size_t d = 0; d < shape.size(); ++d) {
      if (shape[d] != 1) map[d].dim = static_cast<int>(d);
    }
    return map;
  }

  // Emits a phase over the elements of `type`. It stores the result of `source`
  // at accesses[0]; a load reads accesses[1].
  void EmitPhase(const ir::TensorType& type,
                 const std::vector<Access>& accesses, Stmt source) {
    passes::IterationDomain domain;
    domain.extents = type.shape;
    domain.layout = type.layout;
    domain.folded.assign(type.rank(), false);
    const LoopNest nest(domain, accesses);
    std::vector<int> grid;
    const std::vector<std::vector<AxisPart>> parts = AddAxes(nest, grid);
    const auto phase = builder_.BeginPhase(std::move(grid));
    if (accesses.size() > 1) source.index = nest.Offset(accesses[1], parts);
    builder_.Store(result_, nest.Offset(accesses[0], parts),
                   builder_.Define(std::move(source), type.dtype));
  }

  // Adds all axes of the nest to the grid. On a GPU, also splits off a block
  // axis from the axis before the fastest, with as many rows as fit in a block.
  std::vector<std::vector<AxisPart>> AddAxes(const LoopNest& nest,
                                             std::vector<int>& grid) {
    std::vector<std::vector<AxisPart>> parts;
    for (size_t a = 0; a < nest.axes().size(); ++a) {
      const LoopAxis& axis = nest.axes()[a];
      const bool vector = static_cast<int>(a) == nest.fastest();
      const bool before = static_cast<int>(a) + 1 == nest.fastest();
      parts.push_back(builder_.AddGridAxis(
          grid, axis.name, axis.extent,
          LargestDivisor(axis.extent, before ? builder_.MaxRows() : 1),
          VectorIf(vector), axis.name + "_row"));
    }
    return parts;
  }

  const ir::Graph& body_;
  const ir::Node& node_;
  KernelBuilder builder_;
  int result_ = -1;
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
