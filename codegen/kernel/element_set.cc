#include "codegen/kernel/element_set.h"

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

void AddTerm(ElementSet& set, int64_t step, int64_t extent) {
  if (step == 0 || extent <= 1) return;
  if (step < 0) set.first += step * (extent - 1);
  const ElementSet::Term term{std::abs(step), extent};
  const auto at = std::upper_bound(
      set.terms.begin(), set.terms.end(), term,
      [](const auto& a, const auto& b) { return a.step < b.step; });
  set.terms.insert(at, term);
}

ElementSet ElementsOf(const Kernel& kernel, const Stmt& stmt) {
  ElementSet set{stmt.index.offset, {}};
  for (const Index::Term& term : stmt.index.terms) {
    AddTerm(set, term.coefficient, kernel.axes[term.axis].extent);
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

}  // namespace fusor::codegen
