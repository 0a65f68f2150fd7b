#pragma once

#include <memory>
#include <string>

#include "codegen/compiler.h"
#include "codegen/target_compiler.h"
#include "ir/graph.h"
#include "passes/passes.h"
#include "tools/fusor/flags/flag_groups.h"

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

// Returns what the module is compiled as: for training if it has the output
// "loss" and has not been differentiated, else for evaluation.
codegen::ProgramKind KindOf(const ir::Graph& graph);

// Returns the compiler of --backend for --target, without a device.
std::unique_ptr<codegen::TargetCompiler> OpenCompiler(
    const CompileFlags& flags);

}  // namespace fusor::tools
