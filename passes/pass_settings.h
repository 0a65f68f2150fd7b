#pragma once

#include <string>
#include <string_view>

#include "passes/passes.h"

namespace fusor::passes {

// "separate", "kernels", "statistics", "gradients", "prologues", "joins".
std::string_view NormLoweringName(NormLowering lowering);
// Throws kUsage for other words.
NormLowering ParseNormLowering(std::string_view name);

// The options that decide what a training step is compiled to, as words
// KEY=VALUE separated by blanks, in a fixed order; faults are left out, and so
// are choices, for which the plan has a hash.
std::string Settings(const PassOptions& options);

}  // namespace fusor::passes
