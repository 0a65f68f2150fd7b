#pragma once

// Bugs on demand, for tests of the tools that find bugs. Nothing here does
// anything unless a fault is planted: by PassOptions::fault or, in programs, by
// the environment variable FUSOR_FAULT.

#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace fusor::passes {

enum class FaultKind {
  kNone,
  kWrong,   // the rewrite is wrong: the result changes by a factor and a term
  kNan,     // the rewrite is wrong: some elements become NaN
  kThrow,   // the pass fails an assertion
  kAbort,   // the pass ends the process
  kKernel,  // one operation of one kernel's machine code is another one
};

struct Fault {
  FaultKind kind = FaultKind::kNone;
  std::string place;  // the pass; kKernel: the kernel's name
  // The value that the rewrite is about: the fault strikes when the pass is
  // about to make that rewrite; empty: when the pass has ended. kKernel: the
  // scalar op that is miscompiled.
  std::string subject;
};

// "wrong:PASS:VALUE", "nan:PASS:VALUE", "throw:PASS:VALUE",
// "abort:PASS:VALUE" or "kernel:KERNEL:OP"; empty for no fault. Throws kUsage.
Fault ParseFault(std::string_view text);

// The fault at the moment in which it strikes: throws or aborts, or returns the
// names of `subject` and of what is computed from it, nearest first, for
// CorruptGraph to choose from when the pass has ended.
std::vector<std::string> StrikeFault(const Fault& fault,
                                     const ir::Value& subject);

// Changes the first of `names` that the graph still has as a floating-point
// value: inside a fusion if there are fusions. False when there is none.
bool CorruptGraph(ir::Graph& graph, FaultKind kind,
                  const std::vector<std::string>& names);

}  // namespace fusor::passes
