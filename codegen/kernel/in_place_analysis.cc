#include "codegen/kernel/in_place_analysis.h"

#include <algorithm>
#include <vector>

#include "codegen/kernel/element_set.h"

namespace fusor::codegen {
namespace {

// A load or store: its phase, its enclosing loops, outermost first, and its
// position in program order.
struct Touch {
  const Stmt* stmt;
  size_t phase;
  std::vector<const Stmt*> loops;
  int place;
};

struct Touches {
  std::vector<Touch> loads;   // of the operand
  std::vector<Touch> stores;  // to the result
};

class Collector {
 public:
  Collector(int operand, int result) : operand_(operand), result_(result) {}

  Touches Collect(const Kernel& kernel) {
    for (; phase_ < kernel.phases.size(); ++phase_) {
      Visit(kernel.phases[phase_].body);
    }
    return std::move(touches_);
  }

 private:
  void Visit(const std::vector<Stmt>& body) {
    for (const Stmt& stmt : body) {
      ++place_;
      if (stmt.kind == StmtKind::kLoop) {
        loops_.push_back(&stmt);
        Visit(stmt.body);
        loops_.pop_back();
      } else if (stmt.kind == StmtKind::kLoad && stmt.buffer == operand_) {
        touches_.loads.push_back({&stmt, phase_, loops_, place_});
      } else if ((stmt.kind == StmtKind::kStore ||
                  stmt.kind == StmtKind::kStoreTile) &&
                 stmt.buffer == result_) {
        touches_.stores.push_back({&stmt, phase_, loops_, place_});
      }
    }
  }

  const int operand_;
  const int result_;
  size_t phase_ = 0;
  int place_ = 0;
  std::vector<const Stmt*> loops_;
  Touches touches_;
};

// Returns the terms that change the index: coefficient != 0, extent > 1.
std::vector<Index::Term> MovingTerms(const Kernel& kernel, const Index& index) {
  std::vector<Index::Term> terms;
  for (const Index::Term& term : index.terms) {
    if (term.coefficient != 0 && kernel.axes[term.axis].extent > 1) {
      terms.push_back(term);
    }
  }
  return terms;
}

bool SameElement(const Kernel& kernel, const Index& a, const Index& b) {
  const std::vector<Index::Term> terms = MovingTerms(kernel, a);
  return a.offset == b.offset &&
         terms.size() == MovingTerms(kernel, b).size() &&
         std::all_of(terms.begin(), terms.end(), [&](const Index::Term& term) {
           return CoefficientOf(b, term.axis) == term.coefficient;
         });
}

// Returns whether the accesses are disjoint at all points of their axes.
bool NeverMeet(const Kernel& kernel, const Touch& load, const Touch& store) {
  return AreDisjoint(ElementsOf(kernel, *load.stmt),
                     ElementsOf(kernel, *store.stmt));
}

// Returns whether the load of each element precedes its store. Either the load
// is in an earlier phase, or both have the same index. In the second case the
// index must use the axes of the grid and of the common loops: then the same
// element implies the same task and the same iteration of these loops, and
// program order decides within it. Block axes are exempt: all rows execute the
// same iterations, and a store that does not use the block axis is executed by
// one row after a barrier of all.
bool LeavesBefore(const Kernel& kernel, const Touch& load, const Touch& store) {
  if (load.phase != store.phase) return load.phase < store.phase;
  if (store.stmt->kind == StmtKind::kStoreTile) return false;
  const Index& index = store.stmt->index;
  if (load.place > store.place ||
      !IsOneToOne(ElementsOf(kernel, *store.stmt)) ||
      !SameElement(kernel, load.stmt->index, index)) {
    return false;
  }
  const auto names = [&](int axis) {
    return kernel.axes[axis].extent == 1 || kernel.axes[axis].block ||
           CoefficientOf(index, axis) != 0;
  };
  const std::vector<int>& grid = kernel.phases[store.phase].grid;
  if (!std::all_of(grid.begin(), grid.end(), names)) return false;
  for (size_t i = 0; i < std::min(load.loops.size(), store.loops.size()); ++i) {
    if (load.loops[i] != store.loops[i]) break;
    if (!names(load.loops[i]->axis)) return false;
  }
  return true;
}

}  // namespace

bool MayOverwrite(const Kernel& kernel, int operand, int result) {
  const KernelBuffer& from = kernel.buffers[operand];
  const KernelBuffer& to = kernel.buffers[result];
  if (from.written || !to.written || to.scratch ||
      from.elements != to.elements || from.num_bytes() != to.num_bytes()) {
    return false;
  }
  const Touches touches = Collector(operand, result).Collect(kernel);
  for (const Touch& load : touches.loads) {
    for (const Touch& store : touches.stores) {
      if (!LeavesBefore(kernel, load, store) &&
          !NeverMeet(kernel, load, store)) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace fusor::codegen
