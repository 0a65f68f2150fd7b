#pragma once

#include <string>

#include "runtime/debug/compare.h"
#include "tools/fusor/flags.h"

namespace fusor::tools {

// The variant that `text` makes of the options that all variants share:
// comma-separated KEY=VALUE, where KEY is fusion, fusion-rounding, winograd,
// dtype, backend, threads, kernel-cache, disable-pass or only-pass (passes
// separated by "+"). `flag`, "--a", names it in errors; throws kUsage, with the
// nearest key, on what it does not know.
runtime::Variant ParseVariant(const std::string& flag, const std::string& text,
                              const CompileFlags& shared,
                              const OptimizerFlags& optimizer);

}  // namespace fusor::tools
