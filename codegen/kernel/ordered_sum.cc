#include "codegen/kernel/ordered_sum.h"

#include "codegen/kernel/launch_config.h"
#include "ir/support/error.h"

namespace fusor::codegen {

Kernel OrderedSumKernel(ir::DType dtype, int ranks, int64_t stride,
                        int64_t elements, const ir::Target& target) {
  FUSOR_ASSERT(IsFloat(ArithOf(dtype)) && ranks > 0 && elements > 0 &&
                   elements <= stride,
               "sums of {} {} of {} ranks, {} apart", elements,
               DTypeName(dtype), ranks, stride);
  enum Axes { kRank, kElement };
  enum Registers { kSum, kPart };
  Kernel kernel;
  kernel.name = "rank_sum";
  kernel.buffers = {{"parts", dtype, ranks * stride},
                    {"sums", dtype, elements, true}};
  kernel.lanes = static_cast<int>(target.vector_bytes / 4);
  if (target.simt) {
    kernel.width = ThreadWidth(kernel.buffers);
    kernel.lanes = static_cast<int>(
        LanesFor(elements, kernel.width, kernel.width * kBlockThreads));
  }
  kernel.axes = {{"rank", ranks}, {"element", elements, true}};
  kernel.registers = {{dtype, true}, {dtype, true}};

  const Stmt zero{
      .kind = StmtKind::kInit, .dst = kSum, .op = ir::ScalarOp::kAdd};
  Stmt load{.kind = StmtKind::kLoad, .dst = kPart};
  load.buffer = 0;
  load.index = {0, {{kRank, stride}, {kElement, 1}}};
  Stmt add{
      .kind = StmtKind::kAccumulate, .dst = kSum, .op = ir::ScalarOp::kAdd};
  add.src[0] = kPart;
  Stmt over_ranks{.kind = StmtKind::kLoop};
  over_ranks.axis = kRank;
  over_ranks.body = {std::move(load), std::move(add)};
  Stmt store{.kind = StmtKind::kStore};
  store.src[0] = kSum;
  store.buffer = 1;
  store.index = {0, {{kElement, 1}}};
  kernel.phases = {{{kElement}, {zero, std::move(over_ranks), store}}};
  return kernel;
}

}  // namespace fusor::codegen
