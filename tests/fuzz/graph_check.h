#pragma once

// What must hold for every graph that compiles.

#include <string>

#include "tests/fuzz/graph_case.h"
#include "tools/inspect/bisect/reduce_case.h"

namespace fusor::fuzz {

// What was found in a case. Classes of messages, for the reduction to keep to,
// are their first words.
struct Finding {
  std::string message;   // empty: nothing
  bool skipped = false;  // nothing could be checked
};

// Runs the case compiled as the variant says, in this process, and compares
// outputs with the interpreter's, fusion on with fusion off under eager
// rounding, and gradients with numeric ones. Throws what compiling and running
// throw.
Finding CheckCase(const inspect::TestCase& test_case, const Variant& variant);

}  // namespace fusor::fuzz
