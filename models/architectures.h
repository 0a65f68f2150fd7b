#pragma once

#include <string_view>

#include "models/layers.h"

namespace fusor::models {

// torchvision's residual networks (He et al. 2015), see the table in
// registry.cc.
struct ResNetSpec {
  int blocks[4];
  bool bottleneck;
  // v1.5 and v1b put the stride in the 3x3 convolution. v1 (gluon) puts it in
  // the first 1x1, and its 1x1 convolutions have biases.
  bool stride_in_1x1 = false;
  bool conv_bias = false;
};
void BuildResNet(Layers& layers, const ResNetSpec& spec);

// The network of He et al. section 4.2 for 32x32 images, with 1x1 projections.
void BuildResNet20Cifar(Layers& layers);

// Simonyan and Zisserman 2014, configuration D, with torchvision's layer names.
void BuildVgg16(Layers& layers, bool batch_norm);

}  // namespace fusor::models
