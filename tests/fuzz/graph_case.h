#pragma once

// What the graph fuzzer compiles: a random graph, how it is compiled, and
// values for its inputs. A pure function of a seed.

#include <cstdint>
#include <string>

#include "codegen/compiler.h"
#include "tools/inspect/bisect/reduce_case.h"

namespace fusor::fuzz {

// How a graph is compiled and what is checked.
struct Variant {
  codegen::ProgramKind kind = codegen::ProgramKind::kEval;
  codegen::CompileOptions compile;
  int threads = 1;
  bool rounding = false;   // fusion on and off are also compared, bit for bit
  bool gradients = false;  // against numeric ones

  std::string Text() const;  // in one line
};

Variant RandomVariant(uint64_t seed);
inspect::TestCase RandomCase(uint64_t seed);

}  // namespace fusor::fuzz
