#include "codegen/kernel/access_analysis.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <optional>

namespace fusor::codegen {
namespace {

int64_t Reach(const std::vector<ElementSet::Term>& terms) {
  int64_t reach = 0;
  for (const ElementSet::Term& term : terms) {
    reach += term.step * (term.extent - 1);
  }
  return reach;
}

int64_t FloorMod(int64_t a, int64_t b) { return (a % b + b) % b; }

// A set of elements quotient * unit + rest, as the product of a set of
// quotients and a set of rests.
struct Parts {
  ElementSet quotient;
  ElementSet rest;
};

// Returns the parts of the elements minus `origin`; nullopt if a sum of the
// smaller steps crosses a multiple of the unit.
std::optional<Parts> Split(const ElementSet& set, int64_t unit,
                           int64_t origin) {
  Parts parts;
  for (const ElementSet::Term& term : set.terms) {
    if (term.step % unit == 0) {
      parts.quotient.terms.push_back({term.step / unit, term.extent});
    } else {
      parts.rest.terms.push_back(term);
    }
  }
  parts.rest.first = FloorMod(set.first - origin, unit);
  parts.quotient.first = (set.first - origin - parts.rest.first) / unit;
  if (parts.rest.first + Reach(parts.rest.terms) >= unit) return std::nullopt;
  return parts;
}

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

}  // namespace

int64_t ElementSet::last() const { return first + Reach(terms); }

int64_t ElementSet::num_points() const {
  int64_t points = 1;
  for (const Term& term : terms) points *= term.extent;
  return points;
}

int64_t CoefficientOf(const Index& index, int axis) {
  for (const Index::Term& term : index.terms) {
    if (term.axis == axis) return term.coefficient;
  }
  return 0;
}

bool HasVectorIndex(const Kernel& kernel, const Stmt& stmt) {
  return std::any_of(stmt.indexed.begin(), stmt.indexed.end(),
                     [&](const IndexedTerm& term) {
                       return kernel.registers[term.reg].vector;
                     });
}

void AddTerm(ElementSet& set, int64_t step, int64_t extent) {
  if (step == 0 || extent <= 1) return;
  if (step < 0) set.first += step * (extent - 1);
  const ElementSet::Term term{std::abs(step), extent};
  const auto at = std::upper_bound(
      set.terms.begin(), set.terms.end(), term,
      [](const auto& a, const auto& b) { return a.step < b.step; });
  set.terms.insert(at, term);
}

IndexValues ValuesOf(const Kernel& kernel, const Index& index,
                     const Bounds& bounds) {
  std::vector<Index::Term> terms = MovingTerms(kernel, index);
  const auto coefficient = [&](int axis) {
    return CoefficientOf({0, terms}, axis);
  };
  IndexValues values;
  for (const Bound* bound : bounds) {
    const std::vector<Index::Term> inner = MovingTerms(kernel, bound->index);
    const bool restricts = std::ranges::any_of(
        inner,
        [&](const Index::Term& term) { return Names(index, term.axis); });
    if (!restricts) continue;
    const int64_t factor = coefficient(inner[0].axis) / inner[0].coefficient;
    const bool contains =
        factor > 0 && std::ranges::all_of(inner, [&](const Index::Term& term) {
          return coefficient(term.axis) % term.coefficient == 0 &&
                 coefficient(term.axis) / term.coefficient == factor;
        });
    if (!contains) {
      values.exact = false;
      continue;
    }
    int64_t last = 0;  // without the bound
    int64_t points = 1;
    for (const Index::Term& term : inner) {
      const int64_t extent = kernel.axes[term.axis].extent;
      last += term.coefficient * (extent - 1);
      points *= extent;
    }
    values.exact &= points == last + 1;
    values.terms.push_back(
        {factor, std::min(bound->extent - bound->index.offset, last + 1)});
    std::erase_if(terms, [&](const Index::Term& term) {
      return Names({0, inner}, term.axis);
    });
  }
  for (const Index::Term& term : terms) {
    values.terms.push_back({term.coefficient, kernel.axes[term.axis].extent});
  }
  return values;
}

bool KeepsThreadsWhole(const Kernel& kernel, const Bound& bound,
                       int vector_axis) {
  if (!Names(bound.index, vector_axis)) return true;
  const int64_t width = kernel.lanes_per_thread();
  return bound.extent % width == 0 && bound.index.offset % width == 0 &&
         std::ranges::all_of(bound.index.terms, [&](const Index::Term& term) {
           return term.axis == vector_axis || term.coefficient % width == 0;
         });
}

ElementSet ElementsOf(const Kernel& kernel, const Stmt& stmt,
                      const Bounds& bounds) {
  const IndexValues values = ValuesOf(kernel, stmt.index, bounds);
  ElementSet set{stmt.index.offset, {}, values.exact};
  for (const auto& [coefficient, extent] : values.terms) {
    AddTerm(set, coefficient, extent);
  }
  for (const IndexedTerm& term : stmt.indexed) {
    AddTerm(set, term.stride, term.extent);
  }
  if (stmt.kind == StmtKind::kStoreTile) {
    const auto elements = static_cast<int64_t>(stmt.tile.order.size());
    AddTerm(set, 1, stmt.tile.run);
    AddTerm(set, stmt.tile.stride, elements / stmt.tile.run);
  }
  return set;
}

// Tests whether every step exceeds the reach of all smaller ones together.
bool IsOneToOne(const ElementSet& set) {
  int64_t reach = 0;
  for (const ElementSet::Term& term : set.terms) {
    if (term.step <= reach) return false;
    reach += term.step * (term.extent - 1);
  }
  return true;
}

// Delinearizes the elements, largest step first, as a tensor offset into its
// dimensions. The sets are disjoint if they are disjoint in one dimension.
bool AreDisjoint(const ElementSet& a, const ElementSet& b) {
  if (a.last() < b.first || b.last() < a.first) return true;
  int64_t divisor = 0;
  for (const ElementSet* set : {&a, &b}) {
    for (const ElementSet::Term& term : set->terms) {
      divisor = std::gcd(divisor, term.step);
    }
  }
  if (divisor == 0) return a.first != b.first;
  if ((a.first - b.first) % divisor != 0) return true;
  size_t i = a.terms.size();
  size_t j = b.terms.size();
  while (i > 0 || j > 0) {
    const int64_t unit = std::max(i > 0 ? a.terms[i - 1].step : 0,
                                  j > 0 ? b.terms[j - 1].step : 0);
    if (unit == 1) return false;
    for (const int64_t origin : {int64_t{0}, std::min(a.first, b.first)}) {
      const auto of_a = Split(a, unit, origin);
      const auto of_b = Split(b, unit, origin);
      if (!of_a.has_value() || !of_b.has_value()) continue;
      return AreDisjoint(of_a->quotient, of_b->quotient) ||
             AreDisjoint(of_a->rest, of_b->rest);
    }
    while (i > 0 && a.terms[i - 1].step == unit) --i;
    while (j > 0 && b.terms[j - 1].step == unit) --j;
  }
  return false;
}

namespace {

// A load or store: its phase, its enclosing loops, outermost first, the bounds
// around it, and its position in program order.
struct Touch {
  const Stmt* stmt;
  size_t phase;
  std::vector<const Stmt*> loops;
  Bounds bounds;
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
      if (Iterates(stmt)) {
        loops_.push_back(&stmt);
        Visit(stmt.body);
        loops_.pop_back();
      } else if (stmt.kind == StmtKind::kGuard) {
        const Bounds outer = bounds_;
        for (const Bound& bound : stmt.bounds) bounds_.push_back(&bound);
        Visit(stmt.body);
        bounds_ = outer;
      } else if ((stmt.kind == StmtKind::kLoad ||
                  stmt.kind == StmtKind::kGather) &&
                 stmt.buffer == operand_) {
        touches_.loads.push_back({&stmt, phase_, loops_, bounds_, place_});
      } else if ((stmt.kind == StmtKind::kStore ||
                  stmt.kind == StmtKind::kStoreTile ||
                  stmt.kind == StmtKind::kScatterAdd) &&
                 stmt.buffer == result_) {
        touches_.stores.push_back({&stmt, phase_, loops_, bounds_, place_});
      }
    }
  }

  const int operand_;
  const int result_;
  size_t phase_ = 0;
  int place_ = 0;
  std::vector<const Stmt*> loops_;
  Bounds bounds_;
  Touches touches_;
};

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
  return AreDisjoint(ElementsOf(kernel, *load.stmt, load.bounds),
                     ElementsOf(kernel, *store.stmt, store.bounds));
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
  if (store.stmt->kind != StmtKind::kStore ||
      load.stmt->kind != StmtKind::kLoad) {
    return false;
  }
  const Index& index = store.stmt->index;
  if (load.place > store.place ||
      !IsOneToOne(ElementsOf(kernel, *store.stmt, store.bounds)) ||
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
