#pragma once

#include <functional>
#include <string>

#include "ir/builder.h"
#include "models/model.h"

namespace fusor::models {

// Layers with parameters, on top of ir::Builder. `name` is the layer's name in
// torchvision: parameters are "<name>.weight" and so on, and nodes carry it as
// their location, with the line of the model that asks for the layer.
class Layers {
 public:
  Layers(ir::Builder& builder, Phase phase, const ModelOptions& options)
      : b_(builder), phase_(phase), options_(options) {}

  ir::Builder& builder() { return b_; }
  bool training() const { return phase_ == Phase::kTrain; }
  const ModelOptions& options() const { return options_; }

  struct ConvOptions {
    int64_t kernel = 3;
    int64_t stride = 1;
    int64_t pad = 1;
    bool bias = false;
  };
  // x [N,C,H,W] -> [N,channels,H',W']
  ir::Value* Conv(ir::Value* x, const std::string& name, int64_t channels,
                  const ConvOptions& options, ir::Where at = {});
  // `gamma`: initial scale.
  ir::Value* BatchNorm(ir::Value* x, const std::string& name, double gamma = 1,
                       ir::Where at = {});
  // x [..,I] -> [..,features]; torch's default initialisation.
  ir::Value* Linear(ir::Value* x, const std::string& name, int64_t features,
                    ir::Where at = {});
  // The same with weights from N(0, std) and zero bias.
  ir::Value* LinearNormal(ir::Value* x, const std::string& name,
                          int64_t features, double std, ir::Where at = {});
  ir::Value* Relu(ir::Value* x, const std::string& name, ir::Where at = {});
  ir::Value* MaxPool(ir::Value* x, const std::string& name, int64_t window,
                     int64_t stride, int64_t pad, ir::Where at = {});
  ir::Value* Dropout(ir::Value* x, const std::string& name, ir::Where at = {});

  // Input "images" as f32 [N,3,S,S].
  ir::Value* Images(ir::Where at = {});
  // Input "labels", the loss and its outputs, see Model.
  void Classify(ir::Value* logits, ir::Where at = {});

 private:
  bool mixes() const { return training() && options_.mixup; }
  // x where there is no mixup. Else x and, for each sample, that of the next
  // one of the batch, weighted; `of` makes what is weighted, f32 [N,..].
  ir::Value* Mix(ir::Value* x, const std::function<ir::Value*(ir::Value*)>& of);
  ir::Value* Parameter(const std::string& name, ir::Shape shape,
                       ir::InputRole role, ir::Attrs init);
  ir::Value* Dense(ir::Value* x, const std::string& name, int64_t features,
                   ir::Attrs weight_init, ir::Attrs bias_init);

  ir::Builder& b_;
  Phase phase_;
  const ModelOptions& options_;
};

}  // namespace fusor::models
