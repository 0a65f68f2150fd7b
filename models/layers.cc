#include "models/layers.h"

#include <algorithm>
#include <cmath>

#include "ir/support/error.h"

namespace fusor::models {

using ir::Attrs;
using ir::Builder;
using ir::DType;
using ir::InputRole;
using ir::Shape;
using ir::Value;

namespace {

Attrs ConstantInit(double value) {
  return {{"init", std::string("constant")}, {"value", value}};
}
Attrs NormalInit(double std) {
  return {{"init", std::string("normal")}, {"std", std}};
}
Attrs UniformInit(double bound) {
  return {{"init", std::string("uniform")}, {"bound", bound}};
}

// Returns the extent of dimension `dim`, or of the last one for -1.
int64_t ExtentOf(const Value* x, int dim, const std::string& layer) {
  FUSOR_CHECK(x != nullptr, kGraph, "layer {}: expected a value, got null",
              layer);
  const Shape& shape = x->type().shape;
  FUSOR_CHECK(static_cast<int>(shape.size()) > std::max(dim, 0), kGraph,
              "layer {}: expected rank {} or more, got {}", layer,
              std::max(dim, 0) + 1, ToString(x->type()));
  return dim < 0 ? shape.back() : shape[dim];
}

}  // namespace

Value* Layers::Parameter(const std::string& name, Shape shape, InputRole role,
                         Attrs init) {
  return b_.graph().AddInput({DType::kF32, std::move(shape), {}}, role, name,
                             std::move(init));
}

Value* Layers::Conv(Value* x, const std::string& name, int64_t channels,
                    const ConvOptions& options, ir::Where at) {
  const Builder::Layer layer(b_, at);
  Builder::Scope scope(b_, name);
  const int64_t k = options.kernel;
  const int64_t in = ExtentOf(x, 1, name);
  const int64_t fan =
      k * k * (options_.fan == FanMode::kFanOut ? channels : in);
  Value* weight =
      Parameter(name + ".weight", {channels, in, k, k}, InputRole::kWeight,
                NormalInit(std::sqrt(2.0 / static_cast<double>(fan))));
  Value* bias = options.bias ? Parameter(name + ".bias", {channels},
                                         InputRole::kBias, ConstantInit(0))
                             : nullptr;
  return b_.Conv2d(x, weight, bias,
                   {.stride_h = options.stride,
                    .stride_w = options.stride,
                    .pad_h = options.pad,
                    .pad_w = options.pad});
}

Value* Layers::BatchNorm(Value* x, const std::string& name, double gamma,
                         ir::Where at) {
  const Builder::Layer layer(b_, at);
  Builder::Scope scope(b_, name);
  const Shape shape{ExtentOf(x, 1, name)};
  Value* scale = Parameter(name + ".weight", shape, InputRole::kNormScale,
                           ConstantInit(gamma));
  Value* shift =
      Parameter(name + ".bias", shape, InputRole::kNormShift, ConstantInit(0));
  Value* mean = Parameter(name + ".running_mean", shape, InputRole::kStatistic,
                          ConstantInit(0));
  Value* variance = Parameter(name + ".running_var", shape,
                              InputRole::kStatistic, ConstantInit(1));
  const double epsilon = options_.norm_epsilon;
  if (!training()) {
    return b_.BatchNormInference(x, scale, shift, mean, variance, epsilon);
  }
  const ir::BatchNormResult norm = b_.BatchNormTrain(x, scale, shift, epsilon);
  const int64_t ranks = options_.norm_ranks;
  norm.y->producer()->mutable_attrs().Set("ranks", ranks);
  const auto count =
      static_cast<double>(ranks * (x->type().num_elements() / shape[0]));
  const double unbiased = count > 1 ? count / (count - 1) : 1;
  const double m = options_.norm_momentum;
  Value* new_mean = b_.Plus(b_.Times(mean, 1 - m), b_.Times(norm.mean, m));
  Value* new_variance =
      b_.Plus(b_.Times(variance, 1 - m), b_.Times(norm.variance, m * unbiased));
  b_.graph().AddOutput(new_mean, mean->name(), mean->index());
  b_.graph().AddOutput(new_variance, variance->name(), variance->index());
  return norm.y;
}

Value* Layers::Dense(Value* x, const std::string& name, int64_t features,
                     Attrs weight_init, Attrs bias_init) {
  Builder::Scope scope(b_, name);
  Value* weight = Parameter(name + ".weight", {features, ExtentOf(x, -1, name)},
                            InputRole::kWeight, std::move(weight_init));
  Value* bias = Parameter(name + ".bias", {features}, InputRole::kBias,
                          std::move(bias_init));
  return b_.Linear(x, weight, bias);
}

Value* Layers::Linear(Value* x, const std::string& name, int64_t features,
                      ir::Where at) {
  const Builder::Layer layer(b_, at);
  const double bound =
      1 / std::sqrt(static_cast<double>(ExtentOf(x, -1, name)));
  return Dense(x, name, features, UniformInit(bound), UniformInit(bound));
}

Value* Layers::LinearNormal(Value* x, const std::string& name, int64_t features,
                            double std, ir::Where at) {
  const Builder::Layer layer(b_, at);
  return Dense(x, name, features, NormalInit(std), ConstantInit(0));
}

Value* Layers::Relu(Value* x, const std::string& name, ir::Where at) {
  const Builder::Layer layer(b_, at);
  Builder::Scope scope(b_, name);
  return b_.Relu(x);
}

Value* Layers::MaxPool(Value* x, const std::string& name, int64_t window,
                       int64_t stride, int64_t pad, ir::Where at) {
  const Builder::Layer layer(b_, at);
  Builder::Scope scope(b_, name);
  return b_.MaxPool2d(x, {.window_h = window,
                          .window_w = window,
                          .stride_h = stride,
                          .stride_w = stride,
                          .pad_h = pad,
                          .pad_w = pad});
}

Value* Layers::Dropout(Value* x, const std::string& name, ir::Where at) {
  const Builder::Layer layer(b_, at);
  if (!training() || options_.dropout == 0) return x;
  Builder::Scope scope(b_, name);
  ir::Graph& graph = b_.graph();
  Value* key = graph.FindInput("random_key");
  if (key == nullptr) {
    key = graph.AddInput({DType::kI64, {}, {}}, InputRole::kHyperParameter,
                         "random_key");
  }
  Value* step = graph.FindInput("step");
  if (step == nullptr) {
    step = graph.AddInput({DType::kI32, {}, {}}, InputRole::kHyperParameter,
                          "step");
  }
  return b_.Dropout(x, options_.dropout, key, step);
}

Value* Layers::Mix(Value* x, const std::function<Value*(Value*)>& of) {
  if (!mixes()) return of(x);
  Value* share = b_.graph().FindInput("mixup");
  if (share == nullptr) {
    share = b_.graph().AddInput({DType::kF32, {}, {}},
                                InputRole::kHyperParameter, "mixup");
  }
  const Shape& shape = x->type().shape;
  const std::vector<int64_t> zeros(shape.size(), 0);
  std::vector<int64_t> second = zeros;
  second[0] = 1;
  Shape first = shape;
  first[0] = 1;
  Value* next = x;  // for a batch of one
  if (shape[0] > 1) {
    next = b_.Concat({b_.Slice(x, second, shape), b_.Slice(x, zeros, first)},
                     /*dim=*/0);
  }
  Value* rest = b_.Minus(b_.ScalarLike(share, 1), share);
  return b_.Plus(b_.Times(of(x), share), b_.Times(of(next), rest));
}

Value* Layers::Images(ir::Where at) {
  const Builder::Layer layer(b_, at);
  Builder::Scope scope(b_, "images");
  const int64_t n = options_.batch;
  const int64_t s = options_.image_size;
  if (options_.input == InputFormat::kF32Nchw) {
    Value* x = b_.graph().AddInput({DType::kF32, {n, 3, s, s}, {}},
                                   InputRole::kData, "images");
    return Mix(x, [](Value* part) { return part; });
  }
  Value* bytes = b_.graph().AddInput({DType::kU8, {n, s, s, 3}, {}},
                                     InputRole::kData, "images");
  std::vector<double> inverse;
  for (double std : options_.std) inverse.push_back(1 / std);
  Value* mean = b_.Constant(DType::kF32, {3},
                            {options_.mean.begin(), options_.mean.end()});
  Value* scale = b_.Constant(DType::kF32, {3}, inverse);
  Value* levels =
      Mix(bytes, [&](Value* part) { return b_.Cast(part, DType::kF32); });
  Value* x = b_.Times(b_.Minus(levels, mean), scale);
  return b_.Transpose(x, {0, 3, 1, 2});
}

void Layers::Classify(Value* logits, ir::Where at) {
  const Builder::Layer layer(b_, at);
  Builder::Scope scope(b_, "loss");
  ir::Graph& graph = b_.graph();
  const int64_t n = options_.batch;
  Value* labels =
      graph.AddInput({DType::kI32, {n}, {}}, InputRole::kData, "labels");
  if (training()) {
    // The loss of mixed one-hot labels is the mix of the two losses.
    Value* loss = Mix(labels, [&](Value* part) {
      return b_.CrossEntropy(logits, part,
                             {.label_smoothing = options_.label_smoothing});
    });
    graph.AddOutput(b_.ReduceMean(loss, {0}), "loss");
    return;
  }
  Value* weights =
      graph.AddInput({DType::kF32, {n}, {}}, InputRole::kData, "weights");
  const auto total = [&](Value* per_sample, const char* name) {
    graph.AddOutput(b_.ReduceSum(b_.Times(per_sample, weights), {0}), name);
  };
  Value* correct1 = b_.TopKCorrect(logits, labels, 1);
  Value* correct5 = b_.TopKCorrect(logits, labels, 5);
  total(b_.CrossEntropy(logits, labels, {}), "loss_sum");
  total(correct1, "top1");
  total(correct5, "top5");
  if (!options_.per_image) return;
  graph.AddOutput(logits, "logits");
  graph.AddOutput(correct1, "correct1");
  graph.AddOutput(correct5, "correct5");
}

}  // namespace fusor::models
