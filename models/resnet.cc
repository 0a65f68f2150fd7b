#include <fmt/core.h>

#include "models/architectures.h"

namespace fusor::models {
namespace {

using ir::Value;

struct ResNetSpec {
  int blocks[4];
  bool bottleneck;
  // v1.5 and v1b put the stride in the 3x3 convolution. v1 (gluon) puts it in
  // the first 1x1, and its 1x1 convolutions have biases.
  bool stride_in_1x1 = false;
  bool conv_bias = false;
  // ResNeXt: the 3x3 convolutions have 32 groups of `group_width` channels in
  // the first stage, and twice as many channels in each further one. 0: one
  // group of 64 channels.
  int64_t group_width = 0;
  // NVIDIA's SE-ResNeXt: squeeze-and-excitation with kSqueezed hidden units.
  bool gate = false;
};

constexpr int64_t kGroups = 32;    // of ResNeXt
constexpr int64_t kSqueezed = 16;  // in every stage

struct BlockShape {
  int64_t width;  // of the 3x3 convolutions
  int64_t out;    // channels of the block's result
  int64_t stride;
};

// Returns the initial gamma of a block's last normalisation: 0 if requested.
double LastGamma(const Layers& layers) {
  return layers.options().zero_gamma ? 0 : 1;
}

Value* Shortcut(Layers& layers, Value* x, const std::string& name,
                const BlockShape& shape) {
  if (shape.stride == 1 && x->type().shape[1] == shape.out) return x;
  Value* y = layers.Conv(x, name + ".downsample.0", shape.out,
                         {.kernel = 1, .stride = shape.stride, .pad = 0});
  return layers.BatchNorm(y, name + ".downsample.1");
}

Value* ConvNormRelu(Layers& layers, Value* x, const std::string& prefix,
                    int index, int64_t channels,
                    const Layers::ConvOptions& options, ir::Where at = {}) {
  const ir::Builder::Layer layer(layers.builder(), at);
  const std::string bn = prefix + fmt::format("bn{}", index);
  Value* y =
      layers.Conv(x, prefix + fmt::format("conv{}", index), channels, options);
  return layers.Relu(layers.BatchNorm(y, bn), prefix + "relu");
}

// x [N,C,H,W] * sigmoid(expand(relu(squeeze(mean of x's pixels)))), by channel.
Value* SqueezeAndExcite(Layers& layers, Value* x, const std::string& name) {
  ir::Builder& b = layers.builder();
  const ir::Shape& shape = x->type().shape;
  Value* mean = nullptr;
  {
    const ir::Builder::Scope scope(b, name);
    mean = b.GlobalAvgPool(x);
  }
  Value* gate = layers.Relu(layers.Linear(mean, name + ".squeeze", kSqueezed),
                            name + ".relu");
  gate = layers.Linear(gate, name + ".expand", shape[1]);
  const ir::Builder::Scope scope(b, name);
  gate = b.Reshape(b.Sigmoid(gate), {shape[0], shape[1], 1, 1});
  return b.Times(x, b.BroadcastTo(gate, shape));
}

Value* Bottleneck(Layers& layers, Value* x, const std::string& name,
                  const ResNetSpec& spec, const BlockShape& shape) {
  const std::string prefix = name + ".";
  const int64_t first = spec.stride_in_1x1 ? shape.stride : 1;
  const int64_t second = spec.stride_in_1x1 ? 1 : shape.stride;
  Value* y = ConvNormRelu(
      layers, x, prefix, 1, shape.width,
      {.kernel = 1, .stride = first, .pad = 0, .bias = spec.conv_bias});
  y = ConvNormRelu(layers, y, prefix, 2, shape.width,
                   {.kernel = 3,
                    .stride = second,
                    .pad = 1,
                    .groups = spec.group_width > 0 ? kGroups : 1});
  y = layers.Conv(y, prefix + "conv3", shape.out,
                  {.kernel = 1, .pad = 0, .bias = spec.conv_bias});
  y = layers.BatchNorm(y, prefix + "bn3", LastGamma(layers));
  if (spec.gate) y = SqueezeAndExcite(layers, y, prefix + "squeeze");
  Value* shortcut = Shortcut(layers, x, name, shape);
  ir::Builder::Scope scope(layers.builder(), name);
  return layers.Relu(layers.builder().Plus(y, shortcut), "relu");
}

Value* BasicBlock(Layers& layers, Value* x, const std::string& name,
                  const BlockShape& shape) {
  const std::string prefix = name + ".";
  Value* y = ConvNormRelu(layers, x, prefix, 1, shape.width,
                          {.kernel = 3, .stride = shape.stride, .pad = 1});
  y = layers.Conv(y, prefix + "conv2", shape.out, {.kernel = 3, .pad = 1});
  y = layers.BatchNorm(y, prefix + "bn2", LastGamma(layers));
  Value* shortcut = Shortcut(layers, x, name, shape);
  ir::Builder::Scope scope(layers.builder(), name);
  return layers.Relu(layers.builder().Plus(y, shortcut), "relu");
}

void BuildResNet(Layers& layers, const ResNetSpec& spec) {
  Value* x = layers.Images();
  x = ConvNormRelu(layers, x, "", 1, 64, {.kernel = 7, .stride = 2, .pad = 3});
  x = layers.MaxPool(x, "maxpool", 3, 2, 1);
  for (int stage = 0; stage < 4; ++stage) {
    const int64_t out = int64_t{spec.bottleneck ? 256 : 64} << stage;
    const int64_t width =
        (spec.group_width > 0 ? kGroups * spec.group_width : 64) << stage;
    for (int block = 0; block < spec.blocks[stage]; ++block) {
      const std::string name = fmt::format("layer{}.{}", stage + 1, block);
      const int64_t stride = block == 0 && stage > 0 ? 2 : 1;
      x = spec.bottleneck
              ? Bottleneck(layers, x, name, spec, {width, out, stride})
              : BasicBlock(layers, x, name, {width, out, stride});
    }
  }
  {
    ir::Builder::Scope scope(layers.builder(), "avgpool");
    x = layers.builder().GlobalAvgPool(x);
  }
  layers.Classify(layers.Linear(x, "fc", layers.options().num_classes));
}

void BuildResNet20Cifar(Layers& layers) {
  Value* x = layers.Images();
  x = ConvNormRelu(layers, x, "", 1, 16, {.kernel = 3, .pad = 1});
  for (int stage = 0; stage < 3; ++stage) {
    const int64_t width = int64_t{16} << stage;
    for (int block = 0; block < 3; ++block) {
      const int64_t stride = block == 0 && stage > 0 ? 2 : 1;
      x = BasicBlock(layers, x, fmt::format("layer{}.{}", stage + 1, block),
                     {width, width, stride});
    }
  }
  {
    ir::Builder::Scope scope(layers.builder(), "avgpool");
    x = layers.builder().GlobalAvgPool(x);
  }
  layers.Classify(layers.Linear(x, "fc", layers.options().num_classes));
}

template <int a, int b, int c, int d, bool bottleneck>
void ResNet(Layers& layers) {
  BuildResNet(layers, {{a, b, c, d}, bottleneck});
}

template <int c, bool gate>
void ResNext(Layers& layers) {
  BuildResNet(layers, {.blocks = {3, 4, c, 3},
                       .bottleneck = true,
                       .group_width = 4,
                       .gate = gate});
}

constexpr Architecture kResNets[] = {
    {"resnet18-v1.5", 32, ResNet<2, 2, 2, 2, false>},
    {"resnet34-v1.5", 32, ResNet<3, 4, 6, 3, false>},
    {"resnet50-v1.5", 32, ResNet<3, 4, 6, 3, true>},
    {"resnet101-v1.5", 32, ResNet<3, 4, 23, 3, true>},
    {"resnet152-v1.5", 32, ResNet<3, 8, 36, 3, true>},
    // gluon's name for torchvision's network (v1.5).
    {"resnet50-v1b", 32, ResNet<3, 4, 6, 3, true>},
    {"resnet50-v1", 32,
     [](Layers& layers) {
       BuildResNet(layers, {.blocks = {3, 4, 6, 3},
                            .bottleneck = true,
                            .stride_in_1x1 = true,
                            .conv_bias = true});
     }},
    {"resnext50-32x4d", 32, ResNext<6, false>},
    {"resnext101-32x4d", 32, ResNext<23, false>},
    {"se-resnext50-32x4d", 32, ResNext<6, true>},
    {"se-resnext101-32x4d", 32, ResNext<23, true>},
};

constexpr Architecture kCifarResNets[] = {
    {"resnet20-cifar", 8, BuildResNet20Cifar},
};

}  // namespace

std::span<const Architecture> ResNets() { return kResNets; }
std::span<const Architecture> CifarResNets() { return kCifarResNets; }

}  // namespace fusor::models
