#include "tests/examples/small_cnn.h"

#include <cmath>
#include <string>

#include "runtime/fusor.h"

namespace fusor::examples {
namespace {

using ir::Attrs;
using ir::Builder;
using ir::DType;
using ir::Graph;
using ir::InputRole;
using ir::Shape;
using ir::Value;

Value* State(Builder& b, const std::string& name, Shape shape, InputRole role,
             double value) {
  return b.graph().AddInput(
      {DType::kF32, std::move(shape), {}}, role, b.location() + "." + name,
      {{"init", std::string("constant")}, {"value", value}});
}

Value* Weight(Builder& b, Shape shape, int64_t fan) {
  const double std = std::sqrt(2.0 / static_cast<double>(fan));
  return b.graph().AddInput({DType::kF32, std::move(shape), {}},
                            InputRole::kWeight, b.location() + ".weight",
                            {{"init", std::string("normal")}, {"std", std}});
}

// The next value of a running statistic is an output that aliases the
// statistic's input.
void Track(Builder& b, Value* running, Value* batch) {
  Value* next = b.Plus(b.Times(running, 0.9), b.Times(batch, 0.1));
  b.graph().AddOutput(next, running->name(), running->index());
}

Value* ConvNormRelu(Builder& b, const std::string& name, Value* x,
                    int64_t channels) {
  const Builder::Scope scope(b, name);
  const int64_t in = x->type().shape[1];
  Value* weight = Weight(b, {channels, in, 3, 3}, 9 * in);
  Value* y = b.Conv2d(x, weight, nullptr, {.pad_h = 1, .pad_w = 1});
  const Builder::Scope norm(b, "norm");
  Value* gamma = State(b, "weight", {channels}, InputRole::kNormScale, 1);
  Value* beta = State(b, "bias", {channels}, InputRole::kNormShift, 0);
  const ir::BatchNormResult result = b.BatchNormTrain(y, gamma, beta, 1e-5);
  Track(b, State(b, "running_mean", {channels}, InputRole::kStatistic, 0),
        result.mean);
  Track(b, State(b, "running_var", {channels}, InputRole::kStatistic, 1),
        result.variance);
  return b.Relu(result.y);
}

}  // namespace

std::unique_ptr<Graph> BuildSmallCnn(const SmallCnnOptions& options) {
  auto graph = std::make_unique<Graph>("small_cnn");
  Builder b(*graph);
  const int64_t n = options.batch;
  const int64_t side = options.image_size;
  Value* x = graph->AddInput({DType::kF32, {n, 1, side, side}, {}},
                             InputRole::kData, "x");
  Value* labels =
      graph->AddInput({DType::kI32, {n}, {}}, InputRole::kData, "labels");

  x = b.MaxPool2d(ConvNormRelu(b, "conv1", x, 16), {});
  x = b.GlobalAvgPool(ConvNormRelu(b, "conv2", x, 32));
  const Builder::Scope scope(b, "head");
  Value* weight = Weight(b, {options.classes, 32}, 32);
  Value* bias = State(b, "bias", {options.classes}, InputRole::kBias, 0);
  Value* logits = b.Linear(x, weight, bias);
  graph->AddOutput(b.ReduceMean(b.CrossEntropy(logits, labels, {}), {0}),
                   "loss");
  return graph;
}

}  // namespace fusor::examples
