#pragma once

// Properties of every graph that compiles.

#include <string>

#include "tests/fuzz/graph_case.h"
#include "tools/inspect/bisect/reduce_case.h"

namespace fusor::fuzz {

// The result of a case. The first words of the message are its class, which
// reduction must preserve.
struct Finding {
  std::string message;   // empty: no failure
  bool skipped = false;  // nothing could be checked
};

// Compiles and runs the case in this process. Compares its outputs with the
// interpreter's, fusion on with fusion off under eager rounding, and gradients
// with numeric ones. Throws the errors of compiling and running.
Finding CheckCase(const inspect::TestCase& test_case, const Variant& variant);

}  // namespace fusor::fuzz
