#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace fusor::tools {

struct ModelFlags {
  std::string module;                      // file; empty: `arch`
  std::shared_ptr<const ir::Graph> graph;  // read from `module`
  std::string arch = "resnet50-v1.5";
  int64_t batch = 32;
  int64_t image_size = 0;   // 0: the model's default (224, CIFAR 32)
  int64_t num_classes = 0;  // 0: from the data, or 1000
  std::string fan = "fan-out";
  bool zero_gamma = false;
  double dropout = 0.5;
  double label_smoothing = 0;
  double mixup = 0;
  std::vector<double> mean, std;    // 3 values; empty: ImageNet's or CIFAR's
  std::vector<std::string> freeze;  // regular expressions
};

}  // namespace fusor::tools
