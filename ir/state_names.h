#pragma once

// Inputs and outputs of a training graph by which passes, programs and the
// training loop know each other's values. What belongs to a parameter is named
// after it: kind, slash, parameter.

#include <string>
#include <string_view>

namespace fusor::ir {

// Inputs that the host writes before a step.
inline constexpr char kLearningRate[] = "lr";

// State of the loss scale, scalars: f32, then i32.
inline constexpr char kLossScale[] = "loss_scale";
// Steps without overflow since the scale changed.
inline constexpr char kGoodSteps[] = "loss_scale/good_steps";
// Skipped steps in all, and since the last one that was not.
inline constexpr char kOverflows[] = "loss_scale/overflows";
inline constexpr char kOverflowsInRow[] = "loss_scale/overflows_in_row";

// Outputs: bool scalar, whether this step updates; f32 scalar, the norm of all
// gradients before clipping.
inline constexpr char kFinite[] = "gradients_finite";
inline constexpr char kGradientNorm[] = "gradient_norm";

// State, i32 scalar: updates that moving averages have seen.
inline constexpr char kAverages[] = "ema_updates";

// State of micro-batches: i32 scalar, how many have been added up.
inline constexpr char kBatches[] = "accumulated/batches";

inline std::string GradientName(std::string_view parameter) {
  return "grad/" + std::string(parameter);
}
inline std::string MomentumName(std::string_view parameter) {
  return "momentum/" + std::string(parameter);
}
// The sum of gradients, or the running statistic, of micro-batches.
inline std::string AccumulatedName(std::string_view state) {
  return "accumulated/" + std::string(state);
}
// The moving average of a parameter.
inline std::string AverageName(std::string_view parameter) {
  return "ema/" + std::string(parameter);
}

}  // namespace fusor::ir
