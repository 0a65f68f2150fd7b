#include "codegen/streamed_access.h"

#include <algorithm>
#include <map>

namespace fusor::codegen {
namespace {

// An access and the axes around it, those of the grid among them.
struct Access {
  Stmt* stmt = nullptr;
  std::vector<int> axes;
};

// Of each buffer, in the order in which the kernel does them.
using Accesses = std::map<int, std::vector<Access>>;

void Collect(std::vector<Stmt>& body, const std::vector<int>& axes,
             Accesses& accesses) {
  for (Stmt& stmt : body) {
    if (stmt.kind == StmtKind::kLoop) {
      std::vector<int> inner = axes;
      inner.push_back(stmt.axis);
      Collect(stmt.body, inner, accesses);
    } else if (stmt.buffer >= 0) {
      accesses[stmt.buffer].push_back({&stmt, axes});
    }
  }
}

bool Names(const Index& index, int axis) {
  return std::any_of(index.terms.begin(), index.terms.end(),
                     [&](const Index::Term& term) {
                       return term.axis == axis && term.coefficient != 0;
                     });
}

// Every index of the axes around it is another element, and all are there.
bool TouchesEachOnce(const Kernel& kernel, const Access& access) {
  int64_t touched = 1;
  for (const int axis : access.axes) {
    const int64_t extent = kernel.axes[axis].extent;
    if (extent > 1 && !Names(access.stmt->index, axis)) return false;
    touched *= extent;
  }
  return touched == kernel.buffers[access.stmt->buffer].elements;
}

}  // namespace

void MarkStreamed(const ir::Target& target, Kernel& kernel) {
  if (!target.simt) return;
  Accesses accesses;
  for (Phase& phase : kernel.phases) {
    Collect(phase.body, phase.grid, accesses);
  }
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

}  // namespace fusor::codegen
