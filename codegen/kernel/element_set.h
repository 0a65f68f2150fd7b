#pragma once

// The elements of a buffer that one load or store touches, and what can be
// proved about them from their steps alone.

#include <cstdint>
#include <vector>

#include "codegen/kernel/kernel_ir.h"

namespace fusor::codegen {

// first + the sum of step * i over the terms, 0 <= i < extent.
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

// Returns the elements of a load, a store or a tile, over all axes that its
// index names. REQUIRES: none of them is outside the buffer.
ElementSet ElementsOf(const Kernel& kernel, const Stmt& stmt);

// Inserts a term; drops one that does not move.
void AddTerm(ElementSet& set, int64_t step, int64_t extent);

// True if different points of the terms are different elements. False if the
// steps do not prove it.
bool IsOneToOne(const ElementSet& set);

// True if no element belongs to both sets. False if the steps do not prove it.
bool AreDisjoint(const ElementSet& a, const ElementSet& b);

}  // namespace fusor::codegen
