#include <optional>
#include <string>

#include "models/onnx/onnx_ops.h"

namespace fusor::models {

using ir::Builder;
using ir::DType;
using ir::Shape;
using ir::Value;

namespace {

// Computes -log_probabilities [N,C,..] at the target [N,..], times the weight
// of the target's class; 0 for the ignored class.
Value* NegativeLogLikelihood(OnnxCall& call, Value* log_probabilities) {
  Builder& b = call.b();
  Value* target = call.Tensor(1);
  const std::string reduction =
      call.Choice("reduction", {"mean", "sum", "none"});
  if (RankOf(log_probabilities) != RankOf(target) + 1 || RankOf(target) == 0) {
    call.Throw(fmt::format("{} and {}: expected [N,C,..] and [N,..]",
                           ToString(log_probabilities->type()),
                           ToString(target->type())));
  }
  std::optional<int64_t> ignored;
  if (call.HasAttribute("ignore_index")) ignored = call.Int("ignore_index");
  const auto [losses, weights] = b.NegativeLogLikelihood(
      log_probabilities, target, call.OptionalTensor(2), ignored);
  if (reduction == "none") return losses;
  const std::vector<int64_t> all = AllAxes(RankOf(losses));
  Value* sum = b.ReduceSum(losses, all);
  return reduction == "sum" ? sum : b.Divide(sum, b.ReduceSum(weights, all));
}

OnnxResults NegativeLogLikelihoodLoss(OnnxCall& call) {
  return {NegativeLogLikelihood(call, call.Tensor(0))};
}

OnnxResults SoftmaxCrossEntropyLoss(OnnxCall& call) {
  Value* log_probabilities = call.b().LogSoftmax(call.Tensor(0), 1);
  return {NegativeLogLikelihood(call, log_probabilities), log_probabilities};
}

constexpr OnnxOp kLossesOps[] = {
    {"NegativeLogLikelihoodLoss", NegativeLogLikelihoodLoss},
    {"SoftmaxCrossEntropyLoss", SoftmaxCrossEntropyLoss},
};

}  // namespace

std::span<const OnnxOp> OnnxLossOps() { return kLossesOps; }

}  // namespace fusor::models
