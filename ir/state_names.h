#pragma once

// Names of a training graph's inputs and outputs, shared by models, passes,
// programs and the training loop. Names of per-parameter values are
// KIND/PARAMETER.

#include <string>
#include <string_view>

namespace fusor::ir {

// Inputs that the host writes before a step.
inline constexpr char kLearningRate[] = "lr";

// The inputs of a model: "images", whatever they are, and further ones, such as
// a mask of tokens, by the names that the model gives them.
inline constexpr char kModelInput[] = "images";
inline constexpr std::string_view kFurtherInput = "input/";
inline std::string ModelInputName(size_t index, std::string_view name) {
  return index == 0 ? kModelInput
                    : std::string(kFurtherInput) + std::string(name);
}
// Returns the model's own name of an input.
inline std::string OwnInputName(std::string_view name) {
  const bool further = name.starts_with(kFurtherInput);
  return std::string(further ? name.substr(kFurtherInput.size()) : name);
}
inline bool IsModelInputName(std::string_view name) {
  return name == kModelInput || name.starts_with(kFurtherInput);
}

// Loss-scale state: an f32 scalar, then three i32 scalars.
inline constexpr char kLossScale[] = "loss_scale";
// Steps without overflow since the scale last changed.
inline constexpr char kGoodSteps[] = "loss_scale/good_steps";
// Skipped steps: in total, and in a row up to now.
inline constexpr char kOverflows[] = "loss_scale/overflows";
inline constexpr char kOverflowsInRow[] = "loss_scale/overflows_in_row";

// Outputs: a bool scalar, true if this step updates, and an f32 scalar, the
// global gradient norm before clipping.
inline constexpr char kFinite[] = "gradients_finite";
inline constexpr char kGradientNorm[] = "gradient_norm";

// State, i32 scalars: updates done so far, for bias corrections, and updates
// included in the moving averages.
inline constexpr char kUpdates[] = "optimizer_updates";
inline constexpr char kAverages[] = "ema_updates";

// Gradient-accumulation state, i32 scalar: micro-batches accumulated so far.
inline constexpr char kBatches[] = "accumulated/batches";

inline std::string GradientName(std::string_view parameter) {
  return "grad/" + std::string(parameter);
}
inline std::string MomentumName(std::string_view parameter) {
  return "momentum/" + std::string(parameter);
}
// The moving averages of a gradient and of its square (Kingma and Ba, "Adam: A
// Method for Stochastic Optimization", 2015).
inline std::string FirstMomentName(std::string_view parameter) {
  return "first_moment/" + std::string(parameter);
}
inline std::string SecondMomentName(std::string_view parameter) {
  return "second_moment/" + std::string(parameter);
}
// The sum over micro-batches of a gradient or a running statistic.
inline std::string AccumulatedName(std::string_view state) {
  return "accumulated/" + std::string(state);
}
// The moving average of a parameter.
inline std::string AverageName(std::string_view parameter) {
  return "ema/" + std::string(parameter);
}

}  // namespace fusor::ir
