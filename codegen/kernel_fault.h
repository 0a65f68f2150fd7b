#pragma once

#include <string>
#include <vector>

#include "codegen/kernel/kernel_ir.h"
#include "passes/fault.h"

namespace fusor::codegen {

// The kernel, or with a kKernel fault that names it, the kernel in which the
// first statement that computes `fault.subject` computes something else. For
// tests: the result is compiled in place of the kernel, which the plan keeps.
Kernel WithFault(const Kernel& kernel, const passes::Fault& fault);

// The scalar ops of the kernel that such a fault can name, each once, in order.
std::vector<std::string> FaultyOps(const Kernel& kernel);

}  // namespace fusor::codegen
