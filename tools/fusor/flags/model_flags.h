#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace fusor::tools {

struct ModelFlags {
  std::string module;                      // file; empty: `arch`
  std::shared_ptr<const ir::Graph> graph;  // of the file
  std::string arch = "resnet50-v1.5";
  int64_t batch = 32;
  int64_t image_size = 0;   // 0: the model's own (224, CIFAR 32)
  int64_t num_classes = 0;  // 0: the data's, or 1000
  std::string fan = "fan-out";
  bool zero_gamma = false;
  double dropout = 0.5;
  double label_smoothing = 0;
  double mixup = 0;
  std::vector<double> mean, std;    // of 3; empty: ImageNet's, CIFAR's
  std::vector<std::string> freeze;  // regular expressions
};

}  // namespace fusor::tools
