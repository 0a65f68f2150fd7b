#pragma once

#include "passes/passes.h"
#include "tools/fusor/flags.h"

namespace fusor::tools {

// What flags mean to the compiler. Each throws kUsage for flags that do not go
// together.
passes::PrecisionOptions MakePrecision(const CompileFlags& flags);
passes::OptimizerOptions MakeOptimizer(const OptimizerFlags& flags);
passes::LossScaleOptions MakeLossScale(const CompileFlags& compile,
                                       const OptimizerFlags& flags);

}  // namespace fusor::tools
