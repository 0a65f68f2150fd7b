#pragma once

// Cases of the graph fuzzer: a random graph, compile options and values for its
// inputs. Depend only on a seed.

#include <cstdint>
#include <string>

#include "codegen/compiler.h"
#include "tools/inspect/bisect/reduce_case.h"

namespace fusor::fuzz {

// Options of the compilation and the checks.
struct Variant {
  codegen::ProgramKind kind = codegen::ProgramKind::kEval;
  codegen::CompileOptions compile;
  int threads = 1;
  bool rounding = false;   // also compare fusion on and off, bit for bit
  bool gradients = false;  // compare with numeric gradients

  std::string Text() const;  // one line
};

Variant RandomVariant(uint64_t seed);
inspect::TestCase RandomCase(uint64_t seed);

}  // namespace fusor::fuzz
