#pragma once

// Deliberate bugs, to test the tools that find bugs. Inactive unless a fault is
// planted by PassOptions::fault or, in programs, by the environment variable
// FUSOR_FAULT.

#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace fusor::passes {

enum class FaultKind {
  kNone,
  kWrong,   // wrong rewrite: scales and offsets the result
  kNan,     // wrong rewrite: some elements become NaN
  kThrow,   // the pass fails an assertion
  kAbort,   // the pass aborts the process
  kKernel,  // miscompiles one operation of one kernel
};

struct Fault {
  FaultKind kind = FaultKind::kNone;
  std::string place;  // the pass; kKernel: the kernel's name
  // The value that the rewrite is about: the fault is triggered when the pass
  // is about to make that rewrite. Empty: triggered after the pass. kKernel:
  // the scalar op that is miscompiled.
  std::string subject;
};

// Parses "wrong:PASS:VALUE", "nan:PASS:VALUE", "throw:PASS:VALUE",
// "abort:PASS:VALUE" or "kernel:KERNEL:OP"; empty means no fault. Throws
// kUsage.
Fault ParseFault(std::string_view text);

// Triggers the fault. kThrow throws and kAbort aborts. Otherwise returns the
// names of `subject` and of the values computed from it, nearest first.
// CorruptGraph picks one of them after the pass.
std::vector<std::string> StrikeFault(const Fault& fault,
                                     const ir::Value& subject);

// Corrupts the first of `names` that still is a floating-point value of the
// graph, or of a fusion's body if the graph has fusions. Returns false if there
// is none.
bool CorruptGraph(ir::Graph& graph, FaultKind kind,
                  const std::vector<std::string>& names);

}  // namespace fusor::passes
