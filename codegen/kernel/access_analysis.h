#pragma once

// The buffer elements that loads and stores access, and what they prove about a
// kernel: no races, complete results, in-place execution.

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
  bool exact = true;        // false: guards leave out some of them

  int64_t last() const;
  int64_t num_points() const;
};

// Returns the coefficient of the axis; 0 if the index does not name it.
int64_t CoefficientOf(const Index& index, int axis);

// Returns true if an index in a register differs between lanes.
bool HasVectorIndex(const Kernel& kernel, const Stmt& stmt);

// The bounds of the guards around a statement.
using Bounds = std::vector<const Bound*>;

// The values of an index without its offset: sums of coefficient * i, 0 <= i <
// extent, or some of them if it is not exact.
struct IndexValues {
  struct Term {
    int64_t coefficient;
    int64_t extent;
  };
  std::vector<Term> terms;
  bool exact = true;
};

// Returns the values of the index. The terms of a bound that the index
// contains, multiplied by one number, become one term. REQUIRES: Verify accepts
// the bounds.
IndexValues ValuesOf(const Kernel& kernel, const Index& index,
                     const Bounds& bounds);

// Returns whether the bound holds for all lanes of a thread or for none.
bool KeepsThreadsWhole(const Kernel& kernel, const Bound& bound,
                       int vector_axis);

// Returns the elements of a load, store or tile store, over all axes in its
// index. REQUIRES: none of them is outside the buffer.
ElementSet ElementsOf(const Kernel& kernel, const Stmt& stmt,
                      const Bounds& bounds = {});

// Inserts a term; ignores one with step 0 or extent 1. `step` may be negative.
void AddTerm(ElementSet& set, int64_t step, int64_t extent);

// Returns true if different points of the terms are different elements, false
// if the steps do not prove it.
bool IsOneToOne(const ElementSet& set);

// Returns true if the sets are disjoint, false if the steps do not prove it.
bool AreDisjoint(const ElementSet& a, const ElementSet& b);

// --- Proofs ------------------------------------------------------------------
//
// CheckAccesses and CheckResults throw kInternal with kernel, statement and
// buffer if a proof fails. A proof first uses the strides of the indices. If
// they do not suffice, it enumerates the elements, up to 4 Mi per buffer.
//
// REQUIRES: indices use only open axes and stay inside their buffers.

// Proves that no two threads of a phase (on a CPU: tasks) access the same
// element if one of them stores it, unless barriers separate them, and that
// every element loaded from scratch memory, or added to, was stored before.
void CheckAccesses(const Kernel& kernel);

// Proves that every element of every result is stored. `padded[b]`: buffer b
// holds several tensors, each padded to kBufferAlignment bytes. The padding
// need not be stored.
void CheckResults(const Kernel& kernel, const std::vector<bool>& padded = {});

// Returns true if buffer `result` may alias buffer `operand` exactly: the last
// load of every element of the operand precedes the store of that element of
// the result, in any order of a phase's tasks. Derives this from the loads and
// stores alone. Returns false if they do not prove it.
//
// REQUIRES: Verify(kernel) holds.
bool MayOverwrite(const Kernel& kernel, int operand, int result);

}  // namespace fusor::codegen
