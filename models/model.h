#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace fusor::models {

enum class Phase {
  kTrain,  // batch statistics, dropout; output "loss" and running statistics
  kEval,   // running statistics; outputs "loss_sum", "top1", "top5"
};

// Which side of a convolution its initial weights are scaled by (He et al.).
enum class FanMode { kFanOut, kFanIn };

enum class InputFormat {
  kU8Nhwc,   // "images" u8 [N,S,S,3], normalised by mean and std in the graph
  kF32Nchw,  // "images" f32 [N,3,S,S], as they are
};

struct ModelOptions {
  int64_t batch = 32;
  int64_t image_size = 224;  // height and width
  int64_t num_classes = 1000;
  InputFormat input = InputFormat::kU8Nhwc;
  // Per channel, on the 0..255 scale; ImageNet's.
  std::array<double, 3> mean{123.675, 116.28, 103.53};
  std::array<double, 3> std{58.395, 57.12, 57.375};
  FanMode fan = FanMode::kFanOut;
  bool zero_gamma = false;  // last normalisation of each residual block
  double dropout = 0.5;     // of VGG's classifier
  double label_smoothing = 0;
  // kTrain: each sample is mixed with the next one of the batch, by input
  // "mixup", the sample's own share.
  bool mixup = false;
  double norm_momentum = 0.1;  // weight of the new batch, as in torch
  double norm_epsilon = 1e-5;
  // kTrain: normalisations are over the batches of so many ranks together
  // (synchronised batch normalisation).
  int64_t norm_ranks = 1;
  // kTrain: regular expressions; parameters in whose name one is found are
  // frozen (see FreezeParameters).
  std::vector<std::string> freeze{};
  // kEval: per-image outputs "logits" f32 [N,C], "correct1" and "correct5" f32
  // [N], 1 if the label is the first, or among the first five, else 0.
  bool per_image = false;
};

// A network with its loss, before differentiation. Inputs: "images", "labels"
// i32 [N]; in kEval "weights" f32 [N], 0 for padding of the last batch; where
// dropout is used "random_key" i64 and "step" i32; with mixup "mixup" f32.
// Parameters and running statistics have torchvision's names. Running
// statistics are aliased outputs in kTrain, with torch's unbiased variance.
struct Model {
  std::string arch;
  ModelOptions options;
  std::unique_ptr<ir::Graph> graph;
};

// Throws kUsage with the nearest name for an unknown arch, kGraph when the
// options do not fit it (image too small, ...).
Model BuildModel(const std::string& arch, Phase phase,
                 const ModelOptions& options);

// A model that is not of this library.
struct CustomModel {
  std::string name;
  int64_t batch = 0;        // the only one; 0: any
  bool normalizes = false;  // uses ModelOptions::mean and std
  bool trains = false;      // which phases it has
  bool evaluates = false;
  std::function<std::unique_ptr<ir::Graph>(Phase, const ModelOptions&)> build;
};
// Makes BuildModel and CanonicalArch know the model's name until the process
// ends. Replaces a custom model of that name. Not thread-safe.
void RegisterModel(CustomModel model);
// Null unless a model of that name was registered.
const CustomModel* FindCustomModel(const std::string& name);

// Keeps the parameters in whose name one of the regular expressions is found
// from being trained, as requires_grad_(False) does in PyTorch: they get no
// gradient, no optimizer state and no update. Layers work as before: a
// batch-norm layer normalises by its batch and updates its running statistics.
// Throws kUsage for an expression that is malformed or in no parameter's name,
// and unless a parameter is left to train.
void FreezeParameters(ir::Graph& graph,
                      const std::vector<std::string>& expressions);

// All names that BuildModel takes, aliases last, without custom models.
std::vector<std::string> ArchNames();
// The canonical name behind an alias ("resnet50" -> "resnet50-v1.5").
std::string CanonicalArch(const std::string& arch);

// Whether two names, canonical or not, stand for networks of the same layers;
// false for an unknown one.
bool SameNetwork(const std::string& a, const std::string& b);

struct ParameterCount {
  int64_t parameters = 0;  // elements
  int64_t tensors = 0;
};
ParameterCount CountParameters(const ir::Graph& graph);

}  // namespace fusor::models
