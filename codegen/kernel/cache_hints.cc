#include "codegen/kernel/cache_hints.h"

#include <algorithm>
#include <map>

namespace fusor::codegen {
namespace {

// An access and the enclosing axes, including the grid's.
struct Access {
  Stmt* stmt = nullptr;
  std::vector<int> axes;
};

// By buffer, in program order.
using Accesses = std::map<int, std::vector<Access>>;

void Collect(std::vector<Stmt>& body, const std::vector<int>& axes,
             Accesses& accesses) {
  for (Stmt& stmt : body) {
    if (Iterates(stmt)) {
      std::vector<int> inner = axes;
      inner.push_back(stmt.axis);
      Collect(stmt.body, inner, accesses);
    } else if (stmt.kind == StmtKind::kGuard) {
      Collect(stmt.body, axes, accesses);
    } else if (stmt.buffer >= 0) {
      accesses[stmt.buffer].push_back({&stmt, axes});
    }
  }
}

// Returns whether the access touches each element of its buffer exactly once.
bool TouchesEachOnce(const Kernel& kernel, const Access& access) {
  if (!access.stmt->indexed.empty()) return false;
  int64_t touched = 1;
  for (const int axis : access.axes) {
    const int64_t extent = kernel.axes[axis].extent;
    if (extent > 1 && !Names(access.stmt->index, axis)) return false;
    touched *= extent;
  }
  return touched == kernel.buffers[access.stmt->buffer].elements;
}

// Returns whether the loop has a load with the index of an earlier access.
bool ReadsAgain(const Stmt& loop, const Accesses& earlier) {
  bool found = false;
  VisitStatements(loop.body, [&](const Stmt& stmt) {
    if (stmt.kind != StmtKind::kLoad || !Names(stmt.index, loop.axis)) return;
    const auto accesses = earlier.find(stmt.buffer);
    if (accesses == earlier.end()) return;
    for (const Access& access : accesses->second) {
      found |= access.stmt->index == stmt.index;
    }
  });
  return found;
}

void SetDescending(std::vector<Stmt>& body, const Accesses& earlier) {
  for (Stmt& stmt : body) {
    if (stmt.kind != StmtKind::kLoop) {
      SetDescending(stmt.body, earlier);
      continue;
    }
    stmt.descending =
        HasIndependentIterations(stmt) && ReadsAgain(stmt, earlier);
    SetDescending(stmt.body, earlier);
  }
}

void SetStreamed(const ir::Target& target, const Kernel& kernel,
                 Accesses& accesses) {
  for (auto& [id, all] : accesses) {
    const KernelBuffer& buffer = kernel.buffers[id];
    Access& last = all.back();
    if (!TouchesEachOnce(kernel, last)) continue;
    const bool loads = last.stmt->kind == StmtKind::kLoad;
    const bool stores = last.stmt->kind == StmtKind::kStore;
    last.stmt->streamed =
        (loads && (buffer.packed || buffer.num_bytes() > target.l2_bytes)) ||
        (stores && buffer.packed);
  }
}

}  // namespace

void SetCacheHints(const ir::Target& target, Kernel& kernel) {
  if (!target.simt) return;
  Accesses accesses;
  for (size_t p = 0; p < kernel.phases.size(); ++p) {
    Phase& phase = kernel.phases[p];
    if (p > 0 && p + 1 == kernel.phases.size()) {
      SetDescending(phase.body, accesses);
    }
    Collect(phase.body, phase.grid, accesses);
  }
  SetStreamed(target, kernel, accesses);
}

}  // namespace fusor::codegen
