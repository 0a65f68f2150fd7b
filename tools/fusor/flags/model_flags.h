#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "models/import/imported_model.h"
#include "models/model.h"
#include "runtime/train/mixup.h"

namespace fusor::tools {

struct ModelFlags {
  std::string module;                      // file; empty: `arch`
  std::shared_ptr<const ir::Graph> graph;  // read from `module`
  std::string arch = "resnet50-v1.5";      // see models::CanonicalArch
  std::shared_ptr<const models::CustomModel> custom;  // null: see CustomOf
  // MakeModelOptions replaces an image size of 0 by the model's default (224,
  // CIFAR 32), 0 classes by the data's or 1000, and sets what has no flag.
  models::ModelOptions options = {.image_size = 0, .num_classes = 0};
  runtime::MixOptions mix;        // how training mixes images and labels
  std::vector<double> mean, std;  // 3 values; empty: ImageNet's or CIFAR's
};

// Reads a module and selects it as the model: registers it as "module:NAME"
// (models::RegisterModel) and sets architecture, batch size, image size and
// number of classes from its inputs, as far as possible. Throws what ReadModule
// throws.
//
// Commands find a model's data inputs by name, or else by role and type.
// "images" is the only data input u8 [N,S,S,3] or float [N,3,S,S]; the latter
// is normalised by --mean and --std like the images of built-in models.
// "labels" is the only integer data input [N]. "weights" is the only float data
// input [N], 0 for images that do not count. A module with inputs of imported
// models, see ir::ModelInputName, and "labels" or "targets" reads tensors.
// Hyper-parameters are "lr", "random_key", "step", "mixup" and "cutmix_left"
// etc. A training module has the output "loss", an evaluation module
// "loss_sum", "top1" and "top5", a prediction module "logits" [N,C].
void UseModule(const std::string& path, ModelFlags& flags);

// As above, for a graph.
void UseModule(std::shared_ptr<const ir::Graph> graph, ModelFlags& flags);

// True for a file of another framework: .pt2, which torch.export.save writes,
// or .onnx.
bool IsExported(const std::string& path);
// Reads such a file. Throws what ImportTorch and ImportOnnx throw.
models::CustomModel ReadExported(const std::string& path);
// Reads such a file and selects it as the model, with its batch size and image
// size if these are fixed.
void UseExported(const std::string& path, ModelFlags& flags);
// Reads such a file as a program whose input tensors are given.
models::ImportedProgram ReadProgram(const std::string& path,
                                    const models::GivenTensor& given);

// Returns the custom model: that of the flags, or else the registered one of
// that architecture; null for a built-in model.
const models::CustomModel* CustomOf(const ModelFlags& flags);

// Returns whether the model has an input for images, or for labels.
bool IsFed(const ModelFlags& flags, bool labels);

// Throws kGraph unless the model has an input for images, and with `labels` one
// for labels, as training and evaluation require.
void CheckFed(const ModelFlags& flags, bool labels);

}  // namespace fusor::tools
