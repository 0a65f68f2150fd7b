#include "codegen/cuda/prefetch.h"

#include <algorithm>

#include "codegen/cuda/thread_layout.h"
#include "codegen/kernel/access_analysis.h"
#include "codegen/kernel/kernel_builder.h"

namespace fusor::codegen {
namespace {

// Indices that a loop loads before it adds to a tensor where they say.
constexpr int kUnrollScatter = 64;

}  // namespace

bool Overlaps(const Stmt& loop) {
  bool overlaps = true;
  VisitStatements(loop.body, [&](const Stmt& inner) {
    overlaps &= inner.kind != StmtKind::kLoop &&
                inner.kind != StmtKind::kStore &&
                inner.kind != StmtKind::kScatterAdd;
  });
  return overlaps;
}

const Stmt* ScatteredLoad(const Kernel& kernel, const Stmt& loop) {
  const auto scatter = std::find_if(
      loop.body.begin(), loop.body.end(),
      [](const Stmt& s) { return s.kind == StmtKind::kScatterAdd; });
  if (scatter == loop.body.end() || HasVectorIndex(kernel, *scatter)) {
    return nullptr;
  }
  const auto load =
      std::find_if(loop.body.begin(), loop.body.end(), [&](const Stmt& s) {
        return s.kind == StmtKind::kLoad && s.dst == scatter->src[0];
      });
  return load == loop.body.end() ? nullptr : &*load;
}

Prefetch PrefetchOf(const Kernel& kernel, const Stmt& loop, int vector_axis) {
  if (Overlaps(loop)) return {};
  const Stmt* scattered = ScatteredLoad(kernel, loop);
  Prefetch prefetch;
  for (const Stmt& stmt : loop.body) {
    if (stmt.kind == StmtKind::kLoop || stmt.kind == StmtKind::kGather ||
        stmt.kind == StmtKind::kReduceLanes ||
        stmt.kind == StmtKind::kReduceBlock) {
      return {};
    }
    if (stmt.kind != StmtKind::kLoad || &stmt == scattered) continue;
    const KernelBuffer& buffer = kernel.buffers[stmt.buffer];
    const bool adjacent =
        vector_axis >= 0 && CoefficientOf(stmt.index, vector_axis) == 1;
    const bool plain =
        !buffer.written && (scattered != nullptr || adjacent) &&
        ArithOf(kernel.registers[stmt.dst].dtype) == ArithOf(buffer.dtype);
    if (!plain || (scattered == nullptr && !prefetch.loads.empty())) return {};
    prefetch.loads.push_back(&stmt);
  }
  prefetch.iterations = static_cast<int>(
      LargestDivisor(kernel.axes[loop.axis].extent,
                     scattered != nullptr ? kUnrollScatter : kUnroll));
  if (prefetch.iterations == 1) return {};
  return prefetch;
}

bool IsAsyncCopy(const Kernel& kernel, const Phase& phase, const Stmt& load,
                 const Stmt& store, int vector_axis) {
  if (vector_axis < 0 || load.kind != StmtKind::kLoad ||
      store.kind != StmtKind::kStore || store.src[0] != load.dst) {
    return false;
  }
  const KernelBuffer& from = kernel.buffers[load.buffer];
  const KernelBuffer& to = kernel.buffers[store.buffer];
  if (!to.local) return false;
  const Register& reg = kernel.registers[load.dst];
  const int64_t word = kCopiedBytes / ir::DTypeSize(from.dtype);
  for (const Stmt* access : {&load, &store}) {
    if (CoefficientOf(access->index, vector_axis) != 1 ||
        AlignedElements(kernel, *access, vector_axis) % word != 0) {
      return false;
    }
  }
  // Otherwise one row of threads stores.
  const int block = BlockAxis(kernel, phase);
  int64_t reads = 0;
  VisitStatements(phase.body, [&](const Stmt& stmt) {
    reads += std::count(stmt.src.begin(), stmt.src.end(), load.dst);
  });
  return !from.written && from.dtype == to.dtype && reg.dtype == from.dtype &&
         reg.vector && reads == 1 && (block < 0 || Names(store.index, block));
}

}  // namespace fusor::codegen
