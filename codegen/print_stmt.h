#pragma once

#include <string>

#include "codegen/kernel_ir.h"

namespace fusor::codegen {

// Returns the statement as Print(Kernel) shows it, in one line; a loop without
// its body.
std::string Print(const Stmt& stmt);

}  // namespace fusor::codegen
