#include <string>
#include <utility>
#include <vector>

#include "codegen/kernel/kernel_builder.h"
#include "codegen/lower/lower.h"
#include "ir/interpreter/strided_loops.h"
#include "ir/op.h"

namespace fusor::codegen {

LoweredKernel LowerCumulativeSum(const ir::Graph& body,
                                 const ir::Target& target) {
  const ir::Node& node = *body.nodes()[0];
  const ir::TensorType& type = node.output()->type();
  const auto dim = static_cast<size_t>(node.attrs().Int("dim"));
  const std::vector<int64_t> strides = ir::RowMajorStrides(type.shape);
  KernelBuilder builder("cumsum", target);
  builder.AddBuffers(body);
  size_t lanes = type.rank();  // fastest dimension except `dim`; rank: none
  for (size_t d = 0; d < type.rank(); ++d) {
    if (d != dim && type.shape[d] > 1) lanes = d;
  }
  const bool vector = lanes < type.rank();
  builder.SizeBlock(vector ? type.shape[lanes] : 1);
  std::vector<int> grid;
  Index at;
  for (size_t d = 0; d < type.rank(); ++d) {
    if (d == dim || d == lanes) continue;
    grid.push_back(builder.AddAxis("d" + std::to_string(d), type.shape[d]));
    at.terms.push_back({grid.back(), strides[d]});
  }
  if (vector) {
    grid.push_back(builder.AddAxis("d" + std::to_string(lanes),
                                   type.shape[lanes], AxisKind::kVector));
    at.terms.push_back({grid.back(), strides[lanes]});
  }
  const int along = builder.AddAxis("sum", type.shape[dim]);
  const bool reverse = node.attrs().Bool("reverse");
  if (reverse) at.offset = (type.shape[dim] - 1) * strides[dim];
  at.terms.push_back({along, reverse ? -strides[dim] : strides[dim]});
  {
    const auto phase = builder.BeginPhase(std::move(grid));
    const int sum = builder.Accumulator(ir::ScalarOp::kAdd,
                                        AccumulatorDType(type.dtype), vector);
    const auto loop = builder.BeginLoop(along);
    const int x = builder.Load(0, at);
    const bool exclusive = node.attrs().Bool("exclusive");
    if (exclusive) builder.Store(1, at, sum);
    builder.Accumulate(sum, x);
    if (!exclusive) builder.Store(1, at, sum);
  }
  LoweredKernel lowered = OneBufferPerTensor(std::move(builder).Build(), body);
  lowered.in_place.push_back({0, 0});
  return lowered;
}

}  // namespace fusor::codegen
