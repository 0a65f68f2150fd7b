#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "codegen/compiler.h"
#include "codegen/target_compiler.h"
#include "ir/graph.h"
#include "ir/target/cluster.h"
#include "passes/passes.h"
#include "tools/fusor/flags/flag_groups.h"
#include "tools/fusor/flags/rank_flags.h"

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

// Returns the built-in cluster of that name, or reads the file `name`.
ir::Cluster OpenCluster(const std::string& name);

// Sets the options for `world_size` ranks with `local_size` ranks per node:
// communication dtype, buckets, and all-reduce cost by --cluster.
void SetRankOptions(const RankFlags& flags, int64_t world_size,
                    int64_t local_size, passes::PassOptions& passes);
// As above. Throws kUsage unless all nodes have equally many ranks.
void SetRankOptions(const PlannedRanks& ranks, passes::PassOptions& passes);

// Returns ModelOptions::norm_ranks, the ranks normalised together.
int64_t NormRanks(const RankFlags& flags, int64_t world_size);

}  // namespace fusor::tools
