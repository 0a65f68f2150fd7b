#include <fmt/core.h>

#include "models/architectures.h"

namespace fusor::models {

namespace {

using ir::Value;

void BuildVgg16(Layers& layers, bool batch_norm) {
  constexpr int kPool = 0;
  constexpr int kPlan[] = {64,  64,    kPool, 128,   128, kPool,
                           256, 256,   256,   kPool, 512, 512,
                           512, kPool, 512,   512,   512, kPool};
  Value* x = layers.Images();
  int index = 0;  // position in torchvision's nn.Sequential
  const auto name = [&] { return fmt::format("features.{}", index++); };
  for (int channels : kPlan) {
    if (channels == kPool) {
      x = layers.MaxPool(x, name(), 2, 2, 0);
      continue;
    }
    x = layers.Conv(x, name(), channels, {.kernel = 3, .pad = 1, .bias = true});
    if (batch_norm) x = layers.BatchNorm(x, name());
    x = layers.Relu(x, name());
  }
  {
    ir::Builder& b = layers.builder();
    ir::Builder::Scope scope(b, "avgpool");
    x = b.AdaptiveAvgPool2d(x, 7, 7);
    x = b.Reshape(x, {x->type().shape[0], 512 * 7 * 7});
  }
  constexpr double kStd = 0.01;
  x = layers.LinearNormal(x, "classifier.0", 4096, kStd);
  x = layers.Dropout(layers.Relu(x, "classifier.1"), "classifier.2");
  x = layers.LinearNormal(x, "classifier.3", 4096, kStd);
  x = layers.Dropout(layers.Relu(x, "classifier.4"), "classifier.5");
  layers.Classify(layers.LinearNormal(x, "classifier.6",
                                      layers.options().num_classes, kStd));
}

constexpr Architecture kVggs[] = {
    {"vgg16", 32, [](Layers& layers) { BuildVgg16(layers, false); }},
    {"vgg16-bn", 32, [](Layers& layers) { BuildVgg16(layers, true); }},
};

}  // namespace

std::span<const Architecture> Vggs() { return kVggs; }

}  // namespace fusor::models
