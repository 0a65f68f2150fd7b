#pragma once

#include <memory>
#include <string>

#include "codegen/compiler.h"
#include "codegen/target_compiler.h"
#include "ir/graph.h"
#include "passes/passes.h"
#include "tools/fusor/flags/flag_groups.h"

namespace fusor::tools {

// Returns the backend plug-in for flags.target: the GPU backend if the target
// is a GPU and no other backend was requested.
std::string BackendOf(const CompileFlags& flags);

// Convert flags to compiler options. Throw kUsage for conflicting flags.
passes::PrecisionOptions MakePrecision(const CompileFlags& flags);
passes::OptimizerOptions MakeOptimizer(const OptimizerFlags& flags);
passes::LossScaleOptions MakeLossScale(const CompileFlags& compile,
                                       const OptimizerFlags& flags);

// Returns kTrain if the graph has the output "loss" and has not been
// differentiated, otherwise kEval.
codegen::ProgramKind KindOf(const ir::Graph& graph);

// Returns the compiler of --backend for --target. Requires no device.
std::unique_ptr<codegen::TargetCompiler> OpenCompiler(
    const CompileFlags& flags);

}  // namespace fusor::tools
