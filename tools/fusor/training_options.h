#pragma once

#include <string>

#include "passes/passes.h"
#include "tools/fusor/flags.h"

namespace fusor::tools {

// The plug-in that compiles for flags.target: that for GPUs where the target is
// one and no other plug-in was asked for.
std::string BackendOf(const CompileFlags& flags);

// What flags mean to the compiler. Each throws kUsage for flags that do not go
// together.
passes::PrecisionOptions MakePrecision(const CompileFlags& flags);
passes::OptimizerOptions MakeOptimizer(const OptimizerFlags& flags);
passes::LossScaleOptions MakeLossScale(const CompileFlags& compile,
                                       const OptimizerFlags& flags);

}  // namespace fusor::tools
