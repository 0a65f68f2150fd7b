#include "codegen/cuda/thread_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <numeric>

#include "ir/support/error.h"

namespace fusor::codegen {
namespace {

bool UsesVectorAxis(const Kernel& kernel, const Phase& phase) {
  bool uses = std::any_of(phase.grid.begin(), phase.grid.end(),
                          [&](int axis) { return kernel.axes[axis].vector; });
  VisitStatements(phase.body, [&](const Stmt& stmt) {
    uses |= stmt.kind == StmtKind::kLoop && kernel.axes[stmt.axis].vector;
  });
  return uses;
}

}  // namespace

int ThreadsAlong(const Kernel& kernel, const Phase& phase) {
  return UsesVectorAxis(kernel, phase)
             ? kernel.lanes / kernel.lanes_per_thread()
             : 1;
}

BlockMemory MemoryOf(const Kernel& kernel, const Phase& phase) {
  const auto is_local = [&](int buffer) {
    return buffer >= 0 && kernel.buffers[buffer].local;
  };
  bool local = false;
  int64_t exchanged = 0;  // bytes of a thread
  VisitStatements(phase.body, [&](const Stmt& stmt) {
    local |= is_local(stmt.buffer);
    if (stmt.kind != StmtKind::kReduceLanes &&
        stmt.kind != StmtKind::kReduceBlock) {
      return;
    }
    const bool wide = ir::DTypeSize(kernel.registers[stmt.dst].dtype) == 8;
    exchanged = std::max<int64_t>(exchanged,
                                  kernel.lanes_per_thread() * (wide ? 8 : 4));
  });
  const SharedMemory shared = SharedMemoryOf(kernel);
  BlockMemory memory{.buffers = shared.offsets};
  memory.reductions = local ? shared.bytes : 0;
  memory.bytes = memory.reductions + exchanged * ThreadsAlong(kernel, phase) *
                                         NumRows(kernel, phase);
  return memory;
}

std::vector<CudaLaunch> CudaLaunches(const Kernel& kernel) {
  std::vector<CudaLaunch> launches;
  for (size_t p = 0; p < kernel.phases.size(); ++p) {
    const Phase& phase = kernel.phases[p];
    const int64_t threads =
        ThreadsAlong(kernel, phase) * NumRows(kernel, phase);
    const int64_t blocks = NumTasks(kernel, phase);
    FUSOR_ASSERT(
        threads <= 1024 && blocks <= std::numeric_limits<int32_t>::max(),
        "kernel {}: {} blocks of {} threads", kernel.name, blocks, threads);
    const BlockMemory memory = MemoryOf(kernel, phase);
    FUSOR_ASSERT(memory.bytes <= kMaxSharedBytes,
                 "kernel {}: {} bytes of shared memory", kernel.name,
                 memory.bytes);
    launches.push_back({fmt::format("fusor_p{}", p), blocks,
                        static_cast<int>(threads),
                        memory.is_dynamic() ? memory.bytes : 0});
  }
  return launches;
}

// The first lane is a multiple of the width.
int64_t AlignedElements(const Kernel& kernel, const Stmt& access,
                        int vector_axis) {
  int64_t all = std::gcd(int64_t{kernel.lanes_per_thread()},
                         std::abs(access.index.offset));
  for (const Index::Term& term : access.index.terms) {
    if (term.axis != vector_axis) {
      all = std::gcd(all, std::abs(term.coefficient));
    }
  }
  for (const IndexedTerm& term : access.indexed) {
    all = std::gcd(all, term.stride);
  }
  return all;
}

}  // namespace fusor::codegen
