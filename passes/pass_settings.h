#pragma once

#include <string>
#include <string_view>

#include "passes/passes.h"

namespace fusor::passes {

// "separate", "kernels", "statistics", "gradients", "prologues", "joins".
std::string_view NormLoweringName(NormLowering lowering);
// Throws kUsage for any other name.
NormLowering ParseNormLowering(std::string_view name);

// Returns the options that affect the compiled training step as KEY=VALUE words
// separated by blanks, in a fixed order. Excludes the hook, and choices, which
// the plan records as a hash.
std::string Settings(const PassOptions& options);

}  // namespace fusor::passes
