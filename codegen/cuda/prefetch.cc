#include "codegen/cuda/prefetch.h"

#include <algorithm>
#include <array>

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
    if (stmt.kind == StmtKind::kLoop || stmt.kind == StmtKind::kGuard ||
        stmt.kind == StmtKind::kGather || stmt.kind == StmtKind::kReduceLanes ||
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

const Stmt& CopiedLoad(const Stmt& from) {
  return from.kind == StmtKind::kGuard ? from.body[0] : from;
}

bool IsAsyncCopy(const Kernel& kernel, const Phase& phase, const Stmt& from,
                 const Stmt& store, int vector_axis) {
  const bool guard = from.kind == StmtKind::kGuard;
  if (vector_axis < 0 || store.kind != StmtKind::kStore ||
      store.src[0] != from.dst || (guard && from.body.size() != 1)) {
    return false;
  }
  const Stmt& load = CopiedLoad(from);
  const bool whole_threads =
      std::ranges::all_of(from.bounds, [&](const Bound& bound) {
        return KeepsThreadsWhole(kernel, bound, vector_axis);
      });
  if (load.kind != StmtKind::kLoad || !whole_threads ||
      (guard && from.src[0] != load.dst)) {
    return false;
  }
  const KernelBuffer& source = kernel.buffers[load.buffer];
  const KernelBuffer& to = kernel.buffers[store.buffer];
  if (!to.local) return false;
  const int64_t word = kCopiedBytes / ir::DTypeSize(source.dtype);
  for (const Stmt* access : {&load, &store}) {
    if (CoefficientOf(access->index, vector_axis) != 1 ||
        AlignedElements(kernel, *access, vector_axis) % word != 0) {
      return false;
    }
  }
  // Otherwise one row of threads stores.
  const int block = BlockAxis(kernel, phase);
  if (source.written || source.dtype != to.dtype ||
      (block >= 0 && !Names(store.index, block))) {
    return false;
  }
  return std::ranges::all_of(std::array{load.dst, from.dst}, [&](int copied) {
    const Register& reg = kernel.registers[copied];
    int64_t reads = 0;
    VisitStatements(phase.body, [&](const Stmt& stmt) {
      reads += std::count(stmt.src.begin(), stmt.src.end(), copied);
    });
    return reads == 1 && reg.vector && reg.dtype == source.dtype;
  });
}

}  // namespace fusor::codegen
