#include "tests/testing/block_models.h"

#include "ir/builder.h"
#include "ir/support/error.h"

namespace fusor::test {
namespace {

using ir::InputRole;
using ir::Value;

constexpr int64_t kBatch = 2;
constexpr int64_t kSize = 8;

class Blocks {
 public:
  explicit Blocks(ir::Graph& graph) : graph_(graph), b_(graph) {}

  Value* Input() {
    return graph_.AddInput({ir::DType::kF32, {kBatch, 16, kSize, kSize}, {}},
                           InputRole::kData, "x");
  }

  // An inverted residual block.
  Value* MobileNet(Value* x) {
    Value* y = Relu6(ConvNorm(x, 48, 1));
    y = Relu6(ConvNorm(y, 48, 3, 1, 48));
    return b_.Plus(ConvNorm(y, 16, 1), x);
  }

  // An inverted residual block with SiLU, a stride, and squeeze and excitation.
  Value* EfficientNet(Value* x) {
    Value* y = Silu(ConvNorm(x, 32, 1));
    y = Silu(ConvNorm(y, 32, 5, 2, 32));
    const ir::Shape pooled{kBatch, 32, 1, 1};
    Value* scale = b_.Reshape(b_.ReduceMean(y, {2, 3}), pooled);
    scale = Silu(Conv(scale, 8, 1, 1, 1, true));
    scale = b_.Sigmoid(Conv(scale, 32, 1, 1, 1, true));
    const ir::Shape& shape = y->type().shape;
    scale = b_.Broadcast(b_.Reshape(scale, {kBatch, 32}), shape, {0, 1});
    return ConvNorm(b_.Times(y, scale), 24, 1);
  }

  Value* ConvNext(Value* x) {
    Value* y = Conv(x, 16, 7, 1, 16, true);
    y = b_.Transpose(y, {0, 2, 3, 1});
    y = b_.Reshape(y, {kBatch * kSize * kSize, 16});
    y = b_.LayerNorm(y, Vector(InputRole::kNormScale, 16, 1),
                     Vector(InputRole::kNormShift, 16, 0.1), 1e-6);
    y = b_.Gelu(
        b_.Linear(y, Weight({64, 16}), Vector(InputRole::kBias, 64, 0)));
    y = b_.Linear(y, Weight({16, 64}), Vector(InputRole::kBias, 16, 0));
    y = b_.Times(y, b_.BroadcastAlong(Vector(InputRole::kNormScale, 16, 0.5),
                                      y->type(), 1));
    y = b_.Transpose(b_.Reshape(y, {kBatch, kSize, kSize, 16}), {0, 3, 1, 2});
    return b_.Plus(x, y);
  }

  // Patches of 2x2 pixels, attention with two heads, and a perceptron.
  Value* VisionTransformer(Value* x) {
    constexpr int64_t kTokens = kSize * kSize / 4;
    b_.set_location("patches");
    x = b_.Reshape(x, {kBatch, 16, kSize / 2, 2, kSize / 2, 2});
    x = b_.Transpose(x, {0, 2, 4, 1, 3, 5});
    x = Project(b_.Reshape(x, {kBatch, kTokens, 64}), 32);
    x = b_.Plus(x,
                b_.Broadcast(Weight({kTokens, 32}), x->type().shape, {1, 2}));
    b_.set_location("attention");
    Value* y = LayerNorm(x);
    Value* query = Heads(Project(y, 32));
    Value* scores = b_.Matmul(query, Heads(Project(y, 32)), false, true);
    scores = b_.Softmax(b_.Times(scores, b_.ScalarLike(scores, 0.25)));
    y = b_.Matmul(scores, Heads(Project(y, 32)));
    y = b_.Reshape(b_.Transpose(y, {0, 2, 1, 3}), {kBatch, kTokens, 32});
    x = b_.Plus(x, Project(y, 32));
    b_.set_location("perceptron");
    y = Project(b_.Gelu(Project(LayerNorm(x), 64)), 32);
    x = LayerNorm(b_.Plus(x, y));
    return b_.Reshape(b_.Transpose(x, {0, 2, 1}),
                      {kBatch, 32, kSize / 2, kSize / 2});
  }

  Value* DenseNet(Value* x) {
    for (int layer = 0; layer < 2; ++layer) {
      Value* y = Conv(b_.Relu(Norm(x)), 8, 3, 1, 1);
      x = b_.Concat({x, y}, 1);
    }
    x = Conv(b_.Relu(Norm(x)), 16, 1, 1, 1);
    return b_.AvgPool2d(
        x, {.window_h = 2, .window_w = 2, .stride_h = 2, .stride_w = 2});
  }

  void Classify(Value* x) {
    b_.set_location("fc");
    Value* labels = graph_.AddInput({ir::DType::kI32, {kBatch}, {}},
                                    InputRole::kData, "labels");
    Value* logits =
        b_.Linear(b_.GlobalAvgPool(x), Weight({10, x->type().shape[1]}),
                  Vector(InputRole::kBias, 10, 0));
    graph_.AddOutput(b_.ReduceMean(b_.CrossEntropy(logits, labels, {}), {0}),
                     "loss");
  }

 private:
  std::string Name() { return "p" + std::to_string(parameters_++); }

  Value* Weight(ir::Shape shape) {
    return graph_.AddInput({ir::DType::kF32, std::move(shape), {}},
                           InputRole::kWeight, Name(),
                           {{"init", std::string("normal")}, {"std", 0.2}});
  }

  Value* Vector(InputRole role, int64_t size, double value) {
    return graph_.AddInput(
        {ir::DType::kF32, {size}, {}}, role, Name(),
        {{"init", std::string("constant")}, {"value", value}});
  }

  Value* Project(Value* x, int64_t features) {
    return b_.Linear(x, Weight({features, x->type().shape.back()}),
                     Vector(InputRole::kBias, features, 0));
  }

  // Returns [batch, head, token, feature] of [batch, token, feature].
  Value* Heads(Value* x) {
    const ir::Shape& shape = x->type().shape;
    x = b_.Reshape(x, {shape[0], shape[1], 2, shape[2] / 2});
    return b_.Transpose(x, {0, 2, 1, 3});
  }

  Value* LayerNorm(Value* x) {
    const int64_t features = x->type().shape.back();
    return b_.LayerNorm(x, Vector(InputRole::kNormScale, features, 1),
                        Vector(InputRole::kNormShift, features, 0.1), 1e-6);
  }

  Value* Conv(Value* x, int64_t channels, int64_t kernel, int64_t stride,
              int64_t groups, bool bias = false) {
    b_.set_location("conv" + std::to_string(parameters_));
    ir::Conv2dOptions options;
    options.stride_h = options.stride_w = stride;
    options.pad_h = options.pad_w = kernel / 2;
    options.groups = groups;
    Value* weight =
        Weight({channels, x->type().shape[1] / groups, kernel, kernel});
    return b_.Conv2d(x, weight,
                     bias ? Vector(InputRole::kBias, channels, 0.1) : nullptr,
                     options);
  }

  Value* Norm(Value* x) {
    const int64_t channels = x->type().shape[1];
    b_.set_location("norm" + std::to_string(parameters_));
    return b_
        .BatchNormTrain(x, Vector(InputRole::kNormScale, channels, 1),
                        Vector(InputRole::kNormShift, channels, 0.1), 1e-5)
        .y;
  }

  Value* ConvNorm(Value* x, int64_t channels, int64_t kernel,
                  int64_t stride = 1, int64_t groups = 1) {
    return Norm(Conv(x, channels, kernel, stride, groups));
  }

  Value* Relu6(Value* x) { return b_.Minimum(b_.Relu(x), b_.ScalarLike(x, 6)); }
  Value* Silu(Value* x) { return b_.Times(x, b_.Sigmoid(x)); }

  ir::Graph& graph_;
  ir::Builder b_;
  int parameters_ = 0;
};

}  // namespace

std::unique_ptr<ir::Graph> BlockModel(const std::string& name) {
  auto graph = std::make_unique<ir::Graph>(name);
  Blocks blocks(*graph);
  Value* x = blocks.Input();
  if (name == "mobilenet_v2") {
    x = blocks.MobileNet(x);
  } else if (name == "efficientnet") {
    x = blocks.EfficientNet(x);
  } else if (name == "convnext") {
    x = blocks.ConvNext(x);
  } else if (name == "vit") {
    x = blocks.VisionTransformer(x);
  } else {
    FUSOR_ASSERT(name == "densenet", "no block of {}", name);
    x = blocks.DenseNet(x);
  }
  blocks.Classify(x);
  return graph;
}

}  // namespace fusor::test
