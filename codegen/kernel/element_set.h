#pragma once

// The set of buffer elements that one load or store touches, and what its
// strides alone prove about it.

#include <cstdint>
#include <vector>

#include "codegen/kernel/kernel_ir.h"

namespace fusor::codegen {

// The elements first + sum over the terms of step * i, 0 <= i < extent.
struct ElementSet {
  struct Term {
    int64_t step;    // > 0
    int64_t extent;  // > 1
  };
  int64_t first = 0;
  std::vector<Term> terms;  // by increasing step

  int64_t last() const;
  int64_t num_points() const;
};

// Returns the coefficient of the axis; 0 if the index does not name it.
int64_t CoefficientOf(const Index& index, int axis);

// Returns the elements of a load, store or tile store, over all axes in its
// index. REQUIRES: none of them is outside the buffer.
ElementSet ElementsOf(const Kernel& kernel, const Stmt& stmt);

// Inserts a term; ignores one with step 0 or extent 1. `step` may be negative.
void AddTerm(ElementSet& set, int64_t step, int64_t extent);

// Returns true if different points of the terms are different elements, false
// if the steps do not prove it.
bool IsOneToOne(const ElementSet& set);

// Returns true if the sets are disjoint, false if the steps do not prove it.
bool AreDisjoint(const ElementSet& a, const ElementSet& b);

}  // namespace fusor::codegen
