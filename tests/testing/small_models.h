#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ir/graph.h"
#include "ir/interpreter/interpreter.h"
#include "models/model.h"

namespace fusor::test {

// A two-layer perceptron with batch normalisation, softmax cross-entropy as
// output "loss" and running statistics as aliased outputs: inputs "images" f32
// [batch,12] and "labels" i32 [batch], four classes.
std::unique_ptr<ir::Graph> SmallMlp(int64_t batch = 6);

// resnet20-cifar in training mode, for 8x8 images and ten classes.
std::unique_ptr<ir::Graph> SmallResNet(int64_t batch = 2);

// A ResNet's stem, a residual block and one with a downsampled shortcut, for
// 8x8 images and four classes.
std::unique_ptr<ir::Graph> SmallResidual(int64_t batch = 2);

// A stem and three bottleneck blocks: the shortcut of the first is widened,
// that of the last is downsampled. Covers every position of a normalisation
// next to a convolution in a ResNet. For 8x8 images and four classes. `width`:
// channels of the stem, and of the first two blocks inside.
std::unique_ptr<ir::Graph> SmallBottlenecks(int64_t batch = 2,
                                            int64_t width = 8);

// A block of a vision transformer with two heads and 24 tokens of 48 features,
// for 8x8 images and four classes.
std::unique_ptr<ir::Graph> SmallTransformer(int64_t batch = 2);

// The layers of vgg16-bn for 32x32 images and ten classes, with 1 / `part` of
// the channels. Fully connected layers have 64 features.
std::unique_ptr<ir::Graph> NarrowVgg16Bn(models::Phase phase, int64_t batch = 4,
                                         int part = 8);

// The layers of resnet18 for 32x32 images and ten classes, with a quarter of
// the channels.
std::unique_ptr<ir::Graph> NarrowResNet18(models::Phase phase,
                                          int64_t batch = 4);

}  // namespace fusor::test
