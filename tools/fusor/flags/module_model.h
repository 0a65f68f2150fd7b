#pragma once

#include <memory>
#include <string>

#include "tools/fusor/flags/model_flags.h"

namespace fusor::tools {

// Reads a module and makes it the model of the flags: registers it as
// "module:NAME" (models::RegisterModel) and sets architecture, batch size,
// image size and number of classes by its inputs, as far as they tell. Throws
// what ReadModule throws.
//
// Commands that feed a model find its inputs by role and type, unless they have
// these names: "images" is the one data input u8 [N,S,S,3] or float [N,3,S,S],
// the latter normalised by --mean and --std as built-in models are; "labels"
// the one integer data input [N]; "weights" the one float data input [N], 0 for
// images that do not count. Hyper-parameters are "lr", "random_key", "step" and
// "mixup". A training module has the output "loss", one to evaluate "loss_sum",
// "top1" and "top5", one to predict with "logits" [N,C].
void UseModule(const std::string& path, ModelFlags& flags);

// The same of a graph.
void UseModule(std::shared_ptr<const ir::Graph> graph, ModelFlags& flags);

// Whether the model has the input that images, or labels, are fed to.
bool IsFed(const ModelFlags& flags, bool labels);

// Throws kGraph unless a command can feed the model with images, and labels if
// it is to be trained or evaluated.
void CheckFed(const ModelFlags& flags, bool labels);

}  // namespace fusor::tools
