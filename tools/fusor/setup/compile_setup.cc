#include "tools/fusor/setup/compile_setup.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <vector>

#include "ir/support/error.h"
#include "ir/support/file.h"
#include "ir/support/regex.h"
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
  passes::PrecisionOptions options;
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
  FUSOR_CHECK(mixed || (flags.amp_allow.empty() && flags.amp_deny.empty()),
              kUsage, "--amp-allow, --amp-deny: expected --amp too");
  options.allow = {flags.amp_allow.begin(), flags.amp_allow.end()};
  options.deny = {flags.amp_deny.begin(), flags.amp_deny.end()};
  options.narrow_gradients = flags.opt_level == "O2" || flags.opt_level == "O3";
  return options;
}

namespace {

// Parses "REGEX:lr-scale=X,weight-decay=X", with one or both settings.
passes::ParameterGroup ParseGroup(const std::string& text) {
  const auto fail = [&] {
    ThrowError(ErrorCode::kUsage,
               fmt::format("--param-group {}: expected "
                           "REGEX:lr-scale=X,weight-decay=X, one or both, X at "
                           "least 0",
                           text));
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) fail();
  passes::ParameterGroup group{.pattern = text.substr(0, colon)};
  Regex(group.pattern, "--param-group");
  for (const std::string& setting :
       CLI::detail::split(text.substr(colon + 1), ',')) {
    const size_t equals = setting.find('=');
    const std::string name = setting.substr(0, equals);
    double value = 0;
    if (equals == std::string::npos ||
        !CLI::detail::lexical_cast(setting.substr(equals + 1), value) ||
        !std::isfinite(value) || value < 0) {
      fail();
    }
    if (name == "lr-scale") {
      group.lr_scale = value;
    } else if (name == "weight-decay") {
      group.weight_decay = value;
    } else {
      fail();
    }
  }
  return group;
}

std::vector<passes::ParameterGroup> ParseGroups(
    const std::vector<std::string>& texts) {
  std::vector<passes::ParameterGroup> groups;
  for (const std::string& text : texts) groups.push_back(ParseGroup(text));
  return groups;
}

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
  const passes::OptimizerKind kind = passes::ParseOptimizer(flags.optimizer);
  for (const std::string& name : flags.given) {
    FUSOR_CHECK(passes::HasOption(kind, name), kUsage,
                "--{}: expected --optimizer {}, got {}", name, OwnersOf(name),
                flags.optimizer);
  }
  return {.kind = kind,
          .momentum = flags.momentum,
          .nesterov = flags.nesterov,
          .beta1 = flags.beta1,
          .beta2 = flags.beta2,
          .alpha = flags.alpha,
          .eps = flags.eps,
          .weight_decay = flags.weight_decay,
          .norm_weight_decay = flags.norm_weight_decay ? flags.weight_decay : 0,
          .decoupled_weight_decay = flags.decoupled,
          .lars_coefficient = flags.lars_coefficient,
          .clip_norm = flags.clip_norm,
          .ema_decay = flags.ema_decay,
          .groups = ParseGroups(flags.groups)};
}

passes::LossScaleOptions MakeLossScale(const CompileFlags& compile,
                                       const OptimizerFlags& flags) {
  const bool fixed = flags.static_loss_scale != 0;
  if (!flags.dynamic_loss_scale && (compile.opt_level != "O2" || fixed)) {
    return {.initial = fixed ? flags.static_loss_scale : 1};
  }
  FUSOR_CHECK(flags.min_loss_scale <= flags.initial_loss_scale &&
                  flags.initial_loss_scale <= flags.max_loss_scale,
              kUsage,
              "--initial-loss-scale {}: expected {} to {}, the limits of "
              "--min-loss-scale and --max-loss-scale",
              flags.initial_loss_scale, flags.min_loss_scale,
              flags.max_loss_scale);
  return {.initial = flags.initial_loss_scale,
          .dynamic = true,
          .growth_interval = flags.loss_scale_window,
          .growth_factor = flags.loss_scale_growth,
          .backoff_factor = flags.loss_scale_backoff,
          .floor = flags.min_loss_scale,
          .ceiling = flags.max_loss_scale};
}

codegen::ProgramKind KindOf(const ir::Graph& graph) {
  const bool train = codegen::StageOf(graph) == codegen::GraphStage::kForward &&
                     graph.FindOutput("loss") >= 0;
  return train ? codegen::ProgramKind::kTrain : codegen::ProgramKind::kEval;
}

std::unique_ptr<codegen::TargetCompiler> OpenCompiler(
    const CompileFlags& flags) {
  return runtime::LoadBackend(BackendOf(flags))
      .CreateCompiler(
          flags.target,
          runtime::BackendOptions{.threads = flags.threads, .warning = Warn});
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
  passes.buckets = passes::ParseBucketPolicy("--bucket-policy", flags.buckets);
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
