#pragma once

#include <string>
#include <vector>

#include "codegen/kernel/kernel_ir.h"
#include "passes/fault.h"

namespace fusor::codegen {

// Returns the kernel. If `fault` is a kKernel fault that names it, replaces the
// op of the first statement that computes `fault.subject`. For tests: the
// result is compiled instead of the kernel, and the plan keeps the original.
Kernel WithFault(const Kernel& kernel, const passes::Fault& fault);

// Returns the distinct scalar ops of the kernel that a fault can change.
std::vector<std::string> FaultyOps(const Kernel& kernel);

}  // namespace fusor::codegen
