#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "ir/dtype.h"
#include "ir/support/error.h"
#include "ir/support/str.h"
#include "passes/passes.h"

namespace fusor::passes {
namespace {

constexpr std::string_view kNormLowerings[] = {
    "auto",      "separate",  "kernels", "statistics",
    "gradients", "prologues", "joins"};

std::string Names(const std::set<std::string>& names) {
  if (names.empty()) return "none";
  return Join(names, ",", [](const std::string& name) { return name; });
}

std::string OptimizerSettings(const OptimizerOptions& o) {
  std::string text = fmt::format(
      " optimizer={} momentum={} nesterov={} weight-decay={} "
      "norm-weight-decay={} decoupled={} lars-coefficient={} clip-norm={} "
      "ema-decay={}",
      OptimizerName(o.kind), o.momentum, o.nesterov, o.weight_decay,
      o.norm_weight_decay, o.decoupled_weight_decay, o.lars_coefficient,
      o.clip_norm, o.ema_decay);
  for (const auto& [name, value] :
       std::initializer_list<std::pair<const char*, double>>{{"beta1", o.beta1},
                                                             {"beta2", o.beta2},
                                                             {"alpha", o.alpha},
                                                             {"eps", o.eps}}) {
    if (HasOption(o.kind, name)) text += fmt::format(" {}={}", name, value);
  }
  for (const ParameterGroup& group : o.groups) {
    text += fmt::format(" group={},{}", group.pattern, group.lr_scale);
    if (group.weight_decay) text += fmt::format(",{}", *group.weight_decay);
  }
  return text;
}

std::string LossScaleSettings(const LossScaleOptions& o) {
  if (!o.dynamic) return fmt::format(" loss-scale={}", o.initial);
  return fmt::format(" loss-scale=dynamic,{},{},{},{},{},{}", o.initial,
                     o.growth_interval, o.growth_factor, o.backoff_factor,
                     o.floor, o.ceiling);
}

}  // namespace

std::string_view NormLoweringName(NormLowering lowering) {
  return kNormLowerings[static_cast<int>(lowering)];
}

NormLowering ParseNormLowering(std::string_view name) {
  const auto* found =
      std::find(std::begin(kNormLowerings), std::end(kNormLowerings), name);
  FUSOR_CHECK(found != std::end(kNormLowerings), kUsage,
              "bn-lowering {}: expected {}", name,
              Join(kNormLowerings, " or ",
                   [](std::string_view n) { return std::string(n); }));
  return static_cast<NormLowering>(found - std::begin(kNormLowerings));
}

std::string Settings(const PassOptions& options) {
  const PrecisionOptions& precision = options.precision;
  std::string text = fmt::format(
      "fusion={} rounding={} winograd={} gradients={} dtype={} allow={} "
      "deny={} narrow-gradients={}",
      options.fusion ? "on" : "off", options.eager_rounding ? "eager" : "fast",
      options.winograd ? "on" : "off", options.keep_gradients ? "kept" : "used",
      ir::DTypeName(precision.dtype), Names(precision.allow),
      Names(precision.deny), precision.narrow_gradients);
  if (options.norm_lowering != NormLowering::kAuto &&
      options.norm_lowering != NormLowering::kKernels) {
    text +=
        fmt::format(" bn-lowering={}", NormLoweringName(options.norm_lowering));
  }
  text += OptimizerSettings(options.optimizer);
  text += LossScaleSettings(options.loss_scale);
  text +=
      fmt::format(" micro-batches={} world-size={} disabled={} only={}",
                  static_cast<int>(options.micro_batches), options.world_size,
                  Names(options.disabled), Names(options.only));
  if (options.world_size > 1) {
    if (options.shard_optimizer) text += " sharded-optimizer=yes";
    if (precision.wire.has_value()) {
      text += fmt::format(" wire={}", ir::DTypeName(*precision.wire));
    }
    text += fmt::format(" buckets={} bucket-slack={:.4g}ms",
                        PolicyName(options.buckets),
                        1e3 * options.buckets.slack_seconds);
    text += " collective-cost=" +
            Join(options.collective_cost.algorithms, ",", [](const auto& a) {
              return fmt::format("{:.4g}us+{:.4g}GB/s", 1e6 * a.seconds,
                                 1e-9 / a.seconds_per_byte);
            });
  }
  for (const auto& [pass, rewrites] : options.fuel) {
    text += fmt::format(" fuel-{}={}", pass, rewrites);
  }
  return text;
}

}  // namespace fusor::passes
