#include "tools/fusor/setup/compile_setup.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "ir/support/error.h"
#include "ir/support/file.h"
#include "ir/support/str.h"
#include "ir/target/target.h"
#include "runtime/backend/backend_loader.h"
#include "tools/fusor/output/terminal.h"
#include "tools/inspect/scaling/scale_model.h"

namespace fusor::tools {

std::string BackendOf(const CompileFlags& flags) {
  const bool gpu = flags.backend == CompileFlags{}.backend &&
                   !flags.target.empty() && ir::FindTarget(flags.target).simt;
  return gpu ? "cuda" : flags.backend;
}

// --amp uses the device's 16-bit dtype unless --dtype sets one.
passes::PrecisionOptions MakePrecision(const CompileFlags& flags) {
  passes::PrecisionOptions options = flags.passes.precision;
  std::string dtype = flags.dtype;
  const bool level = !flags.opt_level.empty();
  FUSOR_CHECK(flags.opt_level != "O0" || (!flags.amp && dtype == "fp32"),
              kUsage, "--opt-level O0 is fp32: expected no {}",
              flags.amp ? "--amp" : "--dtype " + dtype);
  const bool amp = level ? flags.opt_level != "O0" : flags.amp;
  if (amp && dtype == "fp32") {
    dtype = BackendOf(flags) == "cuda" ? "fp16" : "bf16";
  }
  if (dtype == "bf16") options.dtype = ir::DType::kBF16;
  if (dtype == "fp16") options.dtype = ir::DType::kF16;
  const bool mixed = options.dtype != ir::DType::kF32;
  FUSOR_CHECK(mixed || (options.allow.empty() && options.deny.empty()), kUsage,
              "--amp-allow, --amp-deny: expected --amp too");
  options.narrow_gradients = flags.opt_level == "O2" || flags.opt_level == "O3";
  return options;
}

namespace {

// Returns the optimizers that have the option of a flag.
std::string OwnersOf(const std::string& flag) {
  std::vector<std::string> names = passes::OptimizerNames();
  std::erase_if(names, [&](const std::string& name) {
    return !passes::HasOption(passes::ParseOptimizer(name), flag);
  });
  return Join(names, " or ", [](const std::string& name) { return name; });
}

}  // namespace

passes::OptimizerOptions MakeOptimizer(const OptimizerFlags& flags) {
  passes::OptimizerOptions options = flags.options;
  for (const std::string& name : flags.given) {
    FUSOR_CHECK(passes::HasOption(options.kind, name), kUsage,
                "--{}: expected --optimizer {}, got {}", name, OwnersOf(name),
                passes::OptimizerName(options.kind));
  }
  if (flags.norm_weight_decay) options.norm_weight_decay = options.weight_decay;
  return options;
}

passes::LossScaleOptions MakeLossScale(const CompileFlags& compile,
                                       const OptimizerFlags& flags) {
  const bool fixed = flags.static_loss_scale != 0;
  passes::LossScaleOptions options = flags.loss_scale;
  if (!options.dynamic && (compile.opt_level != "O2" || fixed)) {
    return {.initial = fixed ? flags.static_loss_scale : 1};
  }
  FUSOR_CHECK(
      options.floor <= options.initial && options.initial <= options.ceiling,
      kUsage,
      "--initial-loss-scale {}: expected {} to {}, the limits of "
      "--min-loss-scale and --max-loss-scale",
      options.initial, options.floor, options.ceiling);
  options.dynamic = true;
  return options;
}

codegen::ProgramKind KindOf(const ir::Graph& graph) {
  const bool train = codegen::StageOf(graph) == codegen::GraphStage::kForward &&
                     graph.FindOutput("loss") >= 0;
  return train ? codegen::ProgramKind::kTrain : codegen::ProgramKind::kEval;
}

std::unique_ptr<codegen::TargetCompiler> OpenCompiler(
    const CompileFlags& flags) {
  return runtime::LoadBackend(BackendOf(flags))
      .CreateCompiler(flags.target,
                      runtime::BackendOptions{.threads = flags.device.threads,
                                              .warning = Warn});
}

ir::Cluster OpenCluster(const std::string& name) {
  std::error_code unreadable;
  if (!std::filesystem::exists(name, unreadable)) return ir::FindCluster(name);
  std::vector<uint8_t> bytes;
  ReadFile(name, ErrorCode::kUsage, bytes);
  return ir::ParseCluster(std::string(bytes.begin(), bytes.end()), name);
}

void SetRankOptions(const RankFlags& flags, int64_t world_size,
                    int64_t local_size, passes::PassOptions& passes) {
  passes.world_size = static_cast<int>(world_size);
  passes.buckets = flags.buckets;
  const int64_t nodes = std::max<int64_t>(1, world_size / local_size);
  passes.collective_cost = inspect::AllReduceCost(OpenCluster(flags.cluster),
                                                  nodes, world_size / nodes);
  passes.shard_optimizer = flags.sharded;
  // Ranks and micro-batches fuse a gradient's sum differently. Fused
  // multiply-adds would follow.
  if (flags.deterministic) passes.eager_rounding = true;
  // One rank accumulates micro-batches in f32; 16-bit all-reduces would not be
  // bit-identical to it.
  const bool exact = flags.deterministic && !passes.precision.narrow_gradients;
  if (flags.wire == "fp32" || (flags.wire == "auto" && exact)) {
    passes.precision.wire = ir::DType::kF32;
  }
  if (flags.wire == "fp16") passes.precision.wire = ir::DType::kF16;
  if (flags.wire == "bf16") passes.precision.wire = ir::DType::kBF16;
}

void SetRankOptions(const PlannedRanks& ranks, passes::PassOptions& passes) {
  const int64_t local =
      ranks.local_size == 0 ? ranks.world_size : ranks.local_size;
  FUSOR_CHECK(ranks.world_size % local == 0, kUsage,
              "--world-size {}: expected a multiple of --nproc-per-node {}",
              ranks.world_size, local);
  SetRankOptions(ranks.flags, ranks.world_size, local, passes);
}

int64_t NormRanks(const RankFlags& flags, int64_t world_size) {
  return flags.sync_bn ? world_size : 1;
}

}  // namespace fusor::tools
