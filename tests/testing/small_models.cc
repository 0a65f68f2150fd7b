#include "tests/testing/small_models.h"

#include "ir/builder.h"
#include "models/layers.h"

namespace fusor::test {
namespace {

using ir::InputRole;

ir::Attrs Init(double value) {
  return {{"init", std::string("constant")}, {"value", value}};
}

}  // namespace

std::unique_ptr<ir::Graph> SmallMlp(int64_t batch) {
  using ir::DType;
  constexpr int64_t kFeatures = 12, kHidden = 16, kClasses = 4;
  auto graph = std::make_unique<ir::Graph>("mlp");
  const auto weight = [&](int64_t rows, int64_t columns, const char* name) {
    return graph->AddInput({DType::kF32, {rows, columns}, {}},
                           InputRole::kWeight, name,
                           {{"init", std::string("normal")}, {"std", 0.3}});
  };
  const auto vector = [&](int64_t size, InputRole role, const char* name,
                          double value) {
    return graph->AddInput({DType::kF32, {size}, {}}, role, name, Init(value));
  };
  ir::Builder b(*graph);
  ir::Value* x = graph->AddInput({DType::kF32, {batch, kFeatures}, {}},
                                 InputRole::kData, "images");
  ir::Value* labels =
      graph->AddInput({DType::kI32, {batch}, {}}, InputRole::kData, "labels");
  b.set_location("fc1");
  ir::Value* hidden =
      b.Linear(x, weight(kHidden, kFeatures, "fc1.weight"),
               vector(kHidden, InputRole::kBias, "fc1.bias", 0.1));
  b.set_location("bn1");
  const ir::BatchNormResult norm = b.BatchNormTrain(
      hidden, vector(kHidden, InputRole::kNormScale, "bn1.weight", 1),
      vector(kHidden, InputRole::kNormShift, "bn1.bias", 0.2), 1e-5);
  ir::Value* mean =
      vector(kHidden, InputRole::kStatistic, "bn1.running_mean", 0);
  ir::Value* kept = b.Plus(b.Times(mean, 0.9), b.Times(norm.mean, 0.1));
  b.set_location("fc2");
  ir::Value* logits =
      b.Linear(b.Relu(norm.y), weight(kClasses, kHidden, "fc2.weight"),
               vector(kClasses, InputRole::kBias, "fc2.bias", 0));
  b.set_location("loss");
  graph->AddOutput(b.ReduceMean(b.CrossEntropy(logits, labels, {}), {0}),
                   "loss");
  graph->AddOutput(kept, "bn1.running_mean", mean->index());
  return graph;
}

std::unique_ptr<ir::Graph> SmallResNet(int64_t batch) {
  models::ModelOptions options;
  options.batch = batch;
  options.image_size = 8;
  options.num_classes = 10;
  return models::BuildModel("resnet20-cifar", models::Phase::kTrain, options)
      .graph;
}

namespace {

// Appends a convolution and its normalisation with new parameters.
ir::Value* ConvNorm(ir::Builder& b, ir::Value* x, int64_t channels,
                    int64_t kernel, int64_t stride, const std::string& name) {
  using ir::DType;
  ir::Graph& graph = b.graph();
  b.set_location(name);
  ir::Value* weight = graph.AddInput(
      {DType::kF32, {channels, x->type().shape[1], kernel, kernel}, {}},
      InputRole::kWeight, name + ".weight",
      {{"init", std::string("normal")}, {"std", 0.3}});
  const auto vector = [&](InputRole role, const char* part, double value) {
    return graph.AddInput({DType::kF32, {channels}, {}}, role, name + part,
                          Init(value));
  };
  ir::Conv2dOptions options;
  options.stride_h = options.stride_w = stride;
  options.pad_h = options.pad_w = kernel / 2;
  ir::Value* y = b.Conv2d(x, weight, nullptr, options);
  const ir::BatchNormResult norm =
      b.BatchNormTrain(y, vector(InputRole::kNormScale, ".gamma", 1),
                       vector(InputRole::kNormShift, ".beta", 0.1), 1e-5);
  ir::Value* mean = vector(InputRole::kStatistic, ".running_mean", 0);
  graph.AddOutput(b.Plus(b.Times(mean, 0.9), b.Times(norm.mean, 0.1)),
                  name + ".running_mean", mean->index());
  return norm.y;
}

// Returns a graph with inputs "images" and "labels".
std::unique_ptr<ir::Graph> ImageGraph(const char* name, int64_t batch) {
  auto graph = std::make_unique<ir::Graph>(name);
  graph->AddInput({ir::DType::kF32, {batch, 3, 8, 8}, {}}, InputRole::kData,
                  "images");
  graph->AddInput({ir::DType::kI32, {batch}, {}}, InputRole::kData, "labels");
  return graph;
}

// Appends a classifier of four classes and its loss.
void AddLoss(ir::Builder& b, ir::Value* x) {
  using ir::DType;
  ir::Graph& graph = b.graph();
  b.set_location("fc");
  ir::Value* weight = graph.AddInput(
      {DType::kF32, {4, x->type().shape[1]}, {}}, InputRole::kWeight,
      "fc.weight", {{"init", std::string("normal")}, {"std", 0.3}});
  ir::Value* bias = graph.AddInput({DType::kF32, {4}, {}}, InputRole::kBias,
                                   "fc.bias", Init(0));
  ir::Value* logits = b.Linear(b.GlobalAvgPool(x), weight, bias);
  b.set_location("loss");
  graph.AddOutput(
      b.ReduceMean(b.CrossEntropy(logits, graph.FindInput("labels"), {}), {0}),
      "loss");
}

}  // namespace

std::unique_ptr<ir::Graph> SmallResidual(int64_t batch) {
  auto graph = ImageGraph("residual", batch);
  ir::Builder b(*graph);
  ir::Value* images = graph->FindInput("images");
  ir::Value* x = b.Relu(ConvNorm(b, images, 8, 3, 1, "stem"));
  for (const int64_t stride : {1, 2}) {
    const std::string name = stride == 1 ? "block1" : "block2";
    const int64_t channels = 8 * stride;
    ir::Value* y = b.Relu(ConvNorm(b, x, channels, 3, stride, name + ".conv1"));
    y = ConvNorm(b, y, channels, 3, 1, name + ".conv2");
    ir::Value* shortcut =
        stride == 1 ? x : ConvNorm(b, x, channels, 1, 2, name + ".downsample");
    b.set_location(name);
    x = b.Relu(b.Plus(y, shortcut));
  }
  AddLoss(b, x);
  return graph;
}

std::unique_ptr<ir::Graph> SmallBottlenecks(int64_t batch, int64_t width) {
  auto graph = ImageGraph("bottlenecks", batch);
  ir::Builder b(*graph);
  ir::Value* x =
      b.Relu(ConvNorm(b, graph->FindInput("images"), width, 3, 1, "stem"));
  for (int block = 1; block <= 3; ++block) {
    const std::string name = "block" + std::to_string(block);
    const int64_t inner = block == 3 ? 2 * width : width;
    const int64_t stride = block == 3 ? 2 : 1;
    ir::Value* y = b.Relu(ConvNorm(b, x, inner, 1, 1, name + ".conv1"));
    y = b.Relu(ConvNorm(b, y, inner, 3, stride, name + ".conv2"));
    y = ConvNorm(b, y, 2 * inner, 1, 1, name + ".conv3");
    const std::string projection = name + ".downsample";
    ir::Value* shortcut =
        block == 2 ? x : ConvNorm(b, x, 2 * inner, 1, stride, projection);
    b.set_location(name);
    x = b.Relu(b.Plus(y, shortcut));
  }
  AddLoss(b, x);
  return graph;
}

namespace {

// Appends a layer with new parameters to x, [..,features].
ir::Value* LinearLayer(ir::Builder& b, ir::Value* x, int64_t features,
                       const std::string& name) {
  using ir::DType;
  ir::Graph& graph = b.graph();
  b.set_location(name);
  const ir::Shape& shape = x->type().shape;
  const int64_t from = shape.back();
  ir::Value* weight = graph.AddInput(
      {DType::kF32, {features, from}, {}}, InputRole::kWeight, name + ".weight",
      {{"init", std::string("normal")}, {"std", 0.2}});
  ir::Value* bias = graph.AddInput({DType::kF32, {features}, {}},
                                   InputRole::kBias, name + ".bias", Init(0.1));
  ir::Value* rows = b.Reshape(x, {x->type().num_elements() / from, from});
  ir::Shape result = shape;
  result.back() = features;
  return b.Reshape(b.Linear(rows, weight, bias), result);
}

ir::Value* NormLayer(ir::Builder& b, ir::Value* x, const std::string& name) {
  using ir::DType;
  b.set_location(name);
  const auto vector = [&](InputRole role, const char* part, double value) {
    return b.graph().AddInput({DType::kF32, {x->type().shape.back()}, {}}, role,
                              name + part, Init(value));
  };
  return b.LayerNorm(x, vector(InputRole::kNormScale, ".weight", 1),
                     vector(InputRole::kNormShift, ".bias", 0), 1e-5);
}

}  // namespace

std::unique_ptr<ir::Graph> SmallTransformer(int64_t batch) {
  constexpr int64_t kTokens = 24, kFeatures = 48, kHeads = 2;
  auto graph = ImageGraph("transformer", batch);
  ir::Builder b(*graph);
  ir::Value* x = b.Reshape(graph->FindInput("images"), {batch, kTokens, 8});
  x = LinearLayer(b, x, kFeatures, "patches");
  ir::Value* y = NormLayer(b, x, "norm1");
  const auto heads = [&](const char* name) {
    ir::Value* all = LinearLayer(b, y, kFeatures, name);
    return b.Transpose(
        b.Reshape(all, {batch, kTokens, kHeads, kFeatures / kHeads}),
        {0, 2, 1, 3});
  };
  ir::Value* q = heads("query");
  ir::Value* k = heads("key");
  ir::Value* v = heads("value");
  b.set_location("attention");
  ir::Value* scores = b.Times(b.Matmul(q, k, false, true), 0.2);
  y = b.Transpose(b.Matmul(b.Softmax(scores), v), {0, 2, 1, 3});
  y = LinearLayer(b, b.Reshape(y, {batch, kTokens, kFeatures}), kFeatures,
                  "projection");
  x = b.Plus(x, y);
  y = LinearLayer(b, NormLayer(b, x, "norm2"), 2 * kFeatures, "mlp1");
  y = LinearLayer(b, b.Gelu(y), kFeatures, "mlp2");
  x = b.Plus(x, y);
  AddLoss(b,
          b.Reshape(b.Transpose(x, {0, 2, 1}), {batch, kFeatures, kTokens, 1}));
  return graph;
}

std::unique_ptr<ir::Graph> NarrowVgg16Bn(models::Phase phase, int64_t batch,
                                         int part) {
  constexpr int kPool = 0;
  constexpr int kPlan[] = {64,  64,    kPool, 128,   128, kPool,
                           256, 256,   256,   kPool, 512, 512,
                           512, kPool, 512,   512,   512, kPool};
  constexpr double kStd = 0.1;
  constexpr int64_t kFeatures = 64;
  const models::ModelOptions options{
      .batch = batch, .image_size = 32, .num_classes = 10};
  auto graph = std::make_unique<ir::Graph>("narrow_vgg16_bn");
  ir::Builder b(*graph);
  models::Layers layers(b, phase, options);
  ir::Value* x = layers.Images();
  for (int index = 0; const int channels : kPlan) {
    const std::string name = "features." + std::to_string(index++);
    if (channels == kPool) {
      x = layers.MaxPool(x, name, 2, 2, 0);
      continue;
    }
    x = layers.Conv(x, name, channels / part,
                    {.kernel = 3, .pad = 1, .bias = true});
    x = layers.Relu(layers.BatchNorm(x, name + ".bn"), name + ".relu");
  }
  x = b.Reshape(b.AdaptiveAvgPool2d(x, 7, 7), {batch, 512 / part * 7 * 7});
  for (const char* name : {"classifier.0", "classifier.3"}) {
    x = layers.Relu(layers.LinearNormal(x, name, kFeatures, kStd), name);
    x = layers.Dropout(x, std::string(name) + ".dropout");
  }
  layers.Classify(layers.LinearNormal(x, "classifier.6", 10, kStd));
  return graph;
}

std::unique_ptr<ir::Graph> NarrowResNet18(models::Phase phase, int64_t batch) {
  const models::ModelOptions options{
      .batch = batch, .image_size = 32, .num_classes = 10};
  auto graph = std::make_unique<ir::Graph>("narrow_resnet18");
  ir::Builder b(*graph);
  models::Layers layers(b, phase, options);
  const auto conv = [&](ir::Value* x, const std::string& name, int64_t channels,
                        int64_t kernel, int64_t stride) {
    x = layers.Conv(x, name, channels,
                    {.kernel = kernel, .stride = stride, .pad = kernel / 2});
    return layers.BatchNorm(x, name + ".bn");
  };
  ir::Value* x =
      layers.Relu(conv(layers.Images(), "conv1", 16, 7, 2), "conv1.relu");
  x = layers.MaxPool(x, "maxpool", 3, 2, 1);
  for (int block = 0; block < 8; ++block) {
    const std::string name = "layer" + std::to_string(block / 2 + 1) + "." +
                             std::to_string(block % 2);
    const int64_t channels = int64_t{16} << block / 2;
    const int64_t stride = block > 0 && block % 2 == 0 ? 2 : 1;
    ir::Value* y = conv(x, name + ".conv1", channels, 3, stride);
    y = conv(layers.Relu(y, name + ".relu1"), name + ".conv2", channels, 3, 1);
    if (stride > 1) x = conv(x, name + ".downsample", channels, 1, stride);
    x = layers.Relu(b.Plus(y, x), name + ".relu2");
  }
  layers.Classify(layers.Linear(b.GlobalAvgPool(x), "fc", 10));
  return graph;
}

}  // namespace fusor::test
