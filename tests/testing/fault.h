#pragma once

// Deliberate bugs, injected to test the tools that find bugs.

#include <string>
#include <string_view>
#include <vector>

#include "codegen/kernel/kernel_ir.h"
#include "passes/rewrite_hook.h"

namespace fusor::test {

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
  // The value that the rewrite replaces: the fault is triggered just before the
  // pass makes that rewrite. If empty, it is triggered after the pass. For
  // kKernel: the scalar op that is miscompiled.
  std::string subject;
};

// Parses "wrong:PASS:VALUE", "nan:PASS:VALUE", "throw:PASS:VALUE",
// "abort:PASS:VALUE" or "kernel:KERNEL:OP"; empty means no fault. Throws
// kUsage.
Fault ParseFault(std::string_view text);

// Returns a factory of hooks that each inject the fault once, for
// PassOptions::hook. A wrong or NaN rewrite corrupts the subject after the
// pass or, if the pass has removed it, the nearest value computed from it.
passes::RewriteHookFactory InjectFault(const Fault& fault);

// Returns the distinct scalar ops of the kernel that a fault can change.
std::vector<std::string> FaultyOps(const codegen::Kernel& kernel);

}  // namespace fusor::test
