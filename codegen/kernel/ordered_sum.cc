#include "codegen/kernel/ordered_sum.h"

#include "codegen/kernel/kernel_builder.h"
#include "ir/support/error.h"

namespace fusor::codegen {

Kernel OrderedSumKernel(ir::DType dtype, int ranks, int64_t stride,
                        int64_t elements, const ir::Target& target) {
  FUSOR_ASSERT(IsFloat(ArithOf(dtype)) && ranks > 0 && elements > 0 &&
                   elements <= stride,
               "sums of {} {} of {} ranks, {} apart", elements,
               DTypeName(dtype), ranks, stride);
  KernelBuilder builder("rank_sum", target);
  const int parts =
      builder.AddBuffer("parts", dtype, ranks * stride, BufferUse::kRead);
  const int sums =
      builder.AddBuffer("sums", dtype, elements, BufferUse::kWritten);
  builder.SizeBlock(elements);
  const int rank = builder.AddAxis("rank", ranks);
  const int element = builder.AddAxis("element", elements, AxisKind::kVector);
  {
    const auto phase = builder.BeginPhase({element});
    const int sum = builder.Accumulator(ir::ScalarOp::kAdd, dtype);
    {
      const auto over_ranks = builder.BeginLoop(rank);
      builder.Accumulate(
          sum, builder.Load(parts, {0, {{rank, stride}, {element, 1}}}));
    }
    builder.Store(sums, {0, {{element, 1}}}, sum);
  }
  return std::move(builder).Build();
}

}  // namespace fusor::codegen
