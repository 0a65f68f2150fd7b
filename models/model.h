#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "ir/interpreter/tensor_source.h"
#include "ir/tensor_type.h"

namespace fusor::models {

enum class Phase {
  kTrain,  // batch statistics, dropout; output "loss" and running statistics
  kEval,   // running statistics; outputs "loss_sum", "top1", "top5"
};

// The fan that scales a convolution's initial weights (He et al.).
enum class FanMode { kFanOut, kFanIn };

// The loss of logits [N,C] and labels, as a mean over the batch.
enum class Loss {
  kCrossEntropy,        // of the softmax
  kBinaryCrossEntropy,  // of each class's sigmoid with the one-hot label
  kMeanSquaredError,    // of the logits and the one-hot label
};

enum class InputFormat {
  kU8Nhwc,   // "images" u8 [N,S,S,3], normalised by mean and std in the graph
  kF32Nchw,  // "images" f32 [N,3,S,S], used unchanged
};

// Types of a sample of a data set of tensors, without the dimension of samples.
struct SampleTypes {
  std::vector<ir::TensorType> inputs;  // u8 [3,H,W] is normalised by mean, std
  // Labels, or values for other losses. Nothing: what the model suggests.
  std::optional<ir::TensorType> target;
  std::string path;  // of the data set, for messages
};

// An input of a model that was not written for this library.
struct ModelInput {
  std::string name;    // in its file
  int64_t tokens = 0;  // it has integers below this; 0: any values
};

struct ModelOptions {
  int64_t batch = 32;
  int64_t image_size = 224;  // height and width
  int64_t num_classes = 1000;
  InputFormat input = InputFormat::kU8Nhwc;
  // Per channel, on the 0..255 scale; defaults are ImageNet's.
  std::array<double, 3> mean{123.675, 116.28, 103.53};
  std::array<double, 3> std{58.395, 57.12, 57.375};
  FanMode fan = FanMode::kFanOut;
  bool zero_gamma = false;  // zero-init each residual block's last gamma
  double dropout = 0.5;     // VGG's classifier
  Loss loss = Loss::kCrossEntropy;
  double label_smoothing = 0;
  // kTrain: mixes each sample with the next one of the batch. Input "mixup" is
  // the weight of the sample itself.
  bool mixup = false;
  // kTrain: mixes samples by CutMix, too. Pixels in the box of the inputs
  // "cutmix_left" to "cutmix_right" and "cutmix_top" to "cutmix_bottom", ends
  // excluded, are those of the next sample, all others are unchanged. The
  // weight of the labels is "mixup". If the box is empty, images are mixed by
  // "mixup".
  bool cutmix = false;
  // kTrain, kU8Nhwc: changes the images before they are mixed. Row c of input
  // "augment_colour" f32 [N,3,4] computes the level of channel c from those of
  // red, green and blue, and 1; the result is clamped to 0..255. Pixels in the
  // box of "augment_box" i32 [N,4], which is left, top, right and bottom, ends
  // excluded, then have the mean colour.
  bool augment = false;
  double norm_momentum = 0.1;  // weight of the new batch, as in PyTorch
  double norm_epsilon = 1e-5;
  // kTrain: batch normalisation over the batches of this many ranks together
  // (synchronised batch normalisation).
  int64_t norm_ranks = 1;
  // kTrain: regular expressions; parameters whose name contains a match are
  // frozen (see FreezeParameters).
  std::vector<std::string> freeze{};
  // kEval: adds per-image outputs "logits" f32 [N,C], and "correct1",
  // "correct5" f32 [N]: 1 if the label is the top class, or among the top five,
  // else 0.
  bool per_image = false;
  // Types of the data that an imported model reads; nothing: RGB images with a
  // label each, or for models of other inputs or results what they suggest.
  std::optional<SampleTypes> sample{};
};

// A network with its loss, before differentiation. Inputs: "images", "labels"
// i32 [N]; in kEval "weights" f32 [N], 0 for padding of the last batch; with
// dropout "random_key" i64 and "step" i32; with mixup or CutMix "mixup" f32;
// with CutMix "cutmix_left" etc., i32; with augmentation "augment_colour" and
// "augment_box". The inputs of imported models are named by
// ir::ModelInputName. Parameters and running statistics have torchvision's
// names. In kTrain running statistics are aliased outputs, with PyTorch's
// unbiased variance.
struct Model {
  std::string arch;
  ModelOptions options;
  std::unique_ptr<ir::Graph> graph;
};

// Builds a model. Throws kUsage with the nearest name for an unknown arch,
// kGraph if the options do not fit it (image too small, ...).
Model BuildModel(const std::string& arch, Phase phase,
                 const ModelOptions& options);

// A model from outside this library.
struct CustomModel {
  std::string name;
  int64_t batch = 0;        // the only supported batch; 0: any
  bool normalizes = false;  // uses ModelOptions::mean and std
  bool trains = false;      // supports kTrain
  bool evaluates = false;
  int64_t image_size = 0;            // the only supported size; 0: any
  int64_t num_classes = 0;           // the default; 0: unknown
  bool classifies = true;            // RGB images, with a label each
  std::vector<ModelInput> inputs{};  // in the order of the graph's
  // Returns the initial values for training; the model must outlive them. The
  // inputs' attributes determine the initial values if this is null, and those
  // of state without values or with another shape.
  std::function<std::vector<ir::TensorSource>()> weights{};
  std::function<std::unique_ptr<ir::Graph>(Phase, const ModelOptions&)> build;
};
// The same for a model that need not be registered.
Model BuildModel(const CustomModel& custom, Phase phase,
                 const ModelOptions& options);
// Registers a model for BuildModel and CanonicalArch until the process ends.
// Replaces a custom model of that name. Not thread-safe.
void RegisterModel(CustomModel model);
// Returns null if no model of that name was registered.
const CustomModel* FindCustomModel(const std::string& name);

// Freezes parameters whose name contains a match of a regular expression, like
// requires_grad_(False) in PyTorch: they get no gradient, no optimizer state
// and no update. Layers are unchanged: a batch-norm layer still normalises by
// its batch and updates its running statistics. Throws kUsage if an expression
// is malformed or matches no parameter, or if no parameter is left to train.
void FreezeParameters(ir::Graph& graph,
                      const std::vector<std::string>& expressions);

// Returns all names BuildModel accepts, aliases last, without custom models.
std::vector<std::string> ArchNames();
// Returns the canonical name of an alias ("resnet50" -> "resnet50-v1.5").
std::string CanonicalArch(const std::string& arch);

// True if two names, canonical or not, denote networks of the same layers;
// false if either is unknown.
bool SameNetwork(const std::string& a, const std::string& b);

struct ParameterCount {
  int64_t parameters = 0;  // elements
  int64_t tensors = 0;
};
ParameterCount CountParameters(const ir::Graph& graph);

}  // namespace fusor::models
