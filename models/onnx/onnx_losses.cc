#include <numeric>
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
  Shape shape = ShapeOf(target);
  if (RankOf(log_probabilities) != RankOf(target) + 1 || shape.empty()) {
    call.Throw(fmt::format("{} and {}: expected [N,C,..] and [N,..]",
                           ToString(log_probabilities->type()),
                           ToString(target->type())));
  }
  target = b.Cast(target, DType::kI64);
  const DType dtype = log_probabilities->type().dtype;
  Value* weight = b.Constant(dtype, shape, {1});
  Value* counts = nullptr;
  if (call.HasAttribute("ignore_index")) {
    const int64_t ignored = call.Int("ignore_index");
    counts = b.Compare("ne", target, static_cast<double>(ignored));
    target = b.Select(counts, target, b.ScalarLike(target, 0));
  }
  if (Value* classes = call.OptionalTensor(2); classes != nullptr) {
    weight = b.Take(classes, target, 0);
  }
  if (counts != nullptr) {
    weight = b.Select(counts, weight, b.ScalarLike(weight, 0));
  }
  Shape index = shape;
  index.insert(index.begin() + 1, 1);
  Value* picked = b.TakeAlong(log_probabilities, b.Reshape(target, index), 1);
  Value* losses = b.Neg(b.Times(b.Reshape(picked, shape), weight));
  if (reduction == "none") return losses;
  const std::vector<int64_t> all = AllAxes(RankOf(losses));
  Value* sum = b.ReduceSum(losses, all);
  return reduction == "sum" ? sum : b.Divide(sum, b.ReduceSum(weight, all));
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
