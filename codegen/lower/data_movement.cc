#include "codegen/lower/data_movement.h"

#include "codegen/kernel/launch_config.h"
#include "codegen/lower/loop_nest.h"
#include "ir/support/error.h"
#include "passes/fusion/iteration_domain.h"

namespace fusor::codegen {
namespace {

class ScatterLowering {
 public:
  ScatterLowering(const ir::Graph& body, const ir::Target& target)
      : node_(*body.nodes()[0]),
        result_(static_cast<int>(body.inputs().size())) {
    kernel_.name = "scatter";
    kernel_.lanes = static_cast<int>(target.vector_bytes / 4);
    for (const ir::Input& input : body.inputs()) {
      const ir::TensorType& type = input.value->type();
      kernel_.buffers.push_back(
          {input.value->name(), type.dtype, type.num_elements()});
    }
    const ir::TensorType& type = node_.output()->type();
    kernel_.buffers.push_back(
        {"result", type.dtype, type.num_elements(), true});
    if (!target.simt) return;
    kernel_.width = ThreadWidth(kernel_.buffers);
    kernel_.lanes = static_cast<int>(
        LanesFor(Fastest(type), kernel_.width, kernel_.width * kBlockThreads));
  }

  // Emits a phase that stores the constant to every element of the result.
  void Fill(double value) {
    const ir::TensorType& type = node_.output()->type();
    const ir::TensorType flat{type.dtype, {type.num_elements()}, {}};
    const std::vector<Access> accesses{{flat, Identity(flat.shape)}};
    Stmt constant{.kind = StmtKind::kConstant};
    constant.constant = RoundTo(type.dtype, value);
    AddPhase(flat, accesses, std::move(constant), false);
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
    Stmt load{.kind = StmtKind::kLoad};
    load.buffer = node_.input(i)->index();
    AddPhase(type, accesses, std::move(load), true);
  }

  LoweredKernel Finish() {
    LoweredKernel lowered;
    for (int i = 0; i < result_; ++i) lowered.operand_spans.push_back({i});
    lowered.result_spans.push_back({0});
    lowered.kernel = std::move(kernel_);
    return lowered;
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

  // Appends a phase over the elements of `type`. It stores the result of
  // `source` at accesses[0]; a load reads accesses[1].
  void AddPhase(const ir::TensorType& type, const std::vector<Access>& accesses,
                Stmt source, bool loads) {
    passes::IterationDomain domain;
    domain.extents = type.shape;
    domain.layout = type.layout;
    domain.folded.assign(type.rank(), false);
    const LoopNest nest(domain, accesses);
    Phase phase;
    const std::vector<Part> parts = AddAxes(nest, phase);
    const auto in_kernel = [&](const Index& offset) {
      Index index{offset.offset, {}};
      for (const Index::Term& term : offset.terms) {
        const auto& [axis, rows] = parts[term.axis];
        index.terms.push_back({axis, term.coefficient * rows});
        if (rows > 1) index.terms.push_back({axis + 1, term.coefficient});
      }
      return index;
    };
    if (loads) source.index = in_kernel(nest.Offset(accesses[1]));
    kernel_.registers.push_back({type.dtype, loads && !nest.axes().empty()});
    source.dst = static_cast<int>(kernel_.registers.size()) - 1;
    Stmt store{.kind = StmtKind::kStore};
    store.buffer = result_;
    store.index = in_kernel(nest.Offset(accesses[0]));
    store.src[0] = source.dst;
    phase.body = {std::move(source), std::move(store)};
    kernel_.phases.push_back(std::move(phase));
  }

  // The kernel axis of a nest axis. If rows > 1, the next kernel axis is a
  // block axis of that extent.
  struct Part {
    int axis;
    int64_t rows;
  };

  // Adds all axes of the nest to the grid. On a GPU, also splits off a block
  // axis from the axis before the fastest, with as many rows as fit in a block.
  std::vector<Part> AddAxes(const LoopNest& nest, Phase& phase) {
    const auto add = [&](const Axis& axis) {
      phase.grid.push_back(static_cast<int>(kernel_.axes.size()));
      kernel_.axes.push_back(axis);
    };
    std::vector<Part> parts;
    for (size_t a = 0; a < nest.axes().size(); ++a) {
      const LoopAxis& axis = nest.axes()[a];
      const bool vector = static_cast<int>(a) == nest.fastest();
      const bool before = static_cast<int>(a) + 1 == nest.fastest();
      const int64_t rows =
          before && kernel_.width > 0
              ? LargestDivisor(axis.extent,
                               kBlockThreads * kernel_.width / kernel_.lanes)
              : 1;
      parts.push_back({static_cast<int>(kernel_.axes.size()), rows});
      add({axis.name, axis.extent / rows, vector});
      if (rows > 1) add({axis.name + "_row", rows, false, true});
    }
    return parts;
  }

  const ir::Node& node_;
  const int result_;
  Kernel kernel_;
};

}  // namespace

LoweredKernel LowerDataMovement(const ir::Graph& body,
                                const ir::Target& target) {
  const ir::Node& node = *body.nodes()[0];
  ScatterLowering lowering(body, target);
  const size_t rank = node.output()->type().rank();
  if (node.attrs().Has("interior")) {  // pad
    lowering.Fill(node.attrs().Float("value"));
    std::vector<int64_t> step = node.attrs().Ints("interior");
    for (int64_t& s : step) ++s;
    lowering.Place(0, node.attrs().Ints("low"), step);
    return lowering.Finish();
  }
  std::vector<int64_t> low(rank, 0);
  if (node.attrs().Has("layout")) {  // copy
    lowering.Place(0, low, std::vector<int64_t>(rank, 1));
    return lowering.Finish();
  }
  FUSOR_ASSERT(node.attrs().Has("dim"), "{} is not a scatter", node.op_name());
  const int64_t dim = node.attrs().Int("dim");
  for (size_t i = 0; i < node.num_inputs(); ++i) {
    lowering.Place(i, low, std::vector<int64_t>(rank, 1));
    low[dim] += node.input(i)->type().shape[dim];
  }
  return lowering.Finish();
}

}  // namespace fusor::codegen
