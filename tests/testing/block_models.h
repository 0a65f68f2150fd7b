#pragma once

#include <memory>
#include <string>

#include "ir/graph.h"

namespace fusor::test {

// Returns a training model of one or two blocks of a network that fusor does
// not have: "mobilenet_v2" (inverted residual), "efficientnet" (squeeze and
// excitation), "convnext" (depthwise 7x7, layer norm over channels, scaled
// residual), "vit" (patches, attention, perceptron) or "densenet"
// (concatenation and transition). Inputs "x" and "labels".
std::unique_ptr<ir::Graph> BlockModel(const std::string& name);

}  // namespace fusor::test
