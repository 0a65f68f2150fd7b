#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ir/builder.h"
#include "models/model.h"

namespace fusor::models {

inline const ir::Shape& ShapeOf(const ir::Value* value) {
  return value->type().shape;
}
inline int64_t RankOf(const ir::Value* value) {
  return static_cast<int64_t>(value->type().rank());
}

// Layers with parameters, on top of ir::Builder. `name` is the layer's name in
// torchvision. Parameters are "<name>.weight" and so on; nodes have the name as
// their location and the source line of the model that builds the layer.
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
    int64_t groups = 1;
  };
  // x [N,C,H,W] -> [N,channels,H',W']
  ir::Value* Conv(ir::Value* x, const std::string& name, int64_t channels,
                  const ConvOptions& options, ir::Where at = {});
  // `gamma` is the initial scale.
  ir::Value* BatchNorm(ir::Value* x, const std::string& name, double gamma = 1,
                       ir::Where at = {});
  // A layer's parameters and running statistics, [C] each. Without statistics
  // (null) every batch is normalised by its own statistics, in evaluation too.
  struct NormState {
    ir::Value* scale;
    ir::Value* shift;
    ir::Value* mean;
    ir::Value* variance;
  };
  // The same with existing state, given as graph inputs. `momentum` is the
  // weight of the new batch.
  ir::Value* BatchNorm(ir::Value* x, const NormState& state, double momentum,
                       double epsilon);
  // Replaces the graph input `running` after the step by
  // (1 - momentum) * running + momentum * scale * batch.
  void UpdateStatistic(ir::Value* running, ir::Value* batch, double momentum,
                       double scale = 1);
  // x [..,I] -> [..,features], with PyTorch's default initialisation.
  ir::Value* Linear(ir::Value* x, const std::string& name, int64_t features,
                    ir::Where at = {});
  // The same with weights drawn from N(0, std) and zero bias.
  ir::Value* LinearNormal(ir::Value* x, const std::string& name,
                          int64_t features, double std, ir::Where at = {});
  ir::Value* Relu(ir::Value* x, const std::string& name, ir::Where at = {});
  ir::Value* MaxPool(ir::Value* x, const std::string& name, int64_t window,
                     int64_t stride, int64_t pad, ir::Where at = {});
  // Zeroes with probability options().dropout.
  ir::Value* Dropout(ir::Value* x, const std::string& name, ir::Where at = {});
  // Zeroes with probability p while training.
  ir::Value* Dropout(ir::Value* x, double p);
  // Uniform f32 in [0, 1) that differs in every step.
  ir::Value* Random(ir::Shape shape);

  // Adds input "images" and returns it as f32 [N,3,S,S].
  ir::Value* Images(ir::Where at = {});
  // Adds input `index`, of that name, of a model whose samples have this type;
  // -1 is any extent. It has the type of options().sample, or `type`, with the
  // image size as extents [C,-1,-1]. Throws kData if the sample does not fit.
  ir::Value* Input(size_t index, const std::string& name,
                   const ir::TensorType& type, ir::Where at = {});
  // Logits [N,C] of an auxiliary classifier, whose loss is multiplied by
  // `weight`.
  struct AuxiliaryLogits {
    ir::Value* logits;
    double weight;
  };
  // Adds input "labels", the loss and the outputs, see Model. Auxiliary losses
  // are added only in kTrain.
  void Classify(ir::Value* logits,
                const std::vector<AuxiliaryLogits>& auxiliary = {},
                ir::Where at = {});
  // Returns the loss of each label, f32, of logits [N,C,..] and labels i32
  // [N,..]; NaN for labels out of range.
  ir::Value* LabelLoss(ir::Value* logits, ir::Value* labels, double smoothing);
  // Returns the sum of all x * weights. Those of weight 0, such as padding, do
  // not count, even if they are NaN.
  ir::Value* WeightedSum(ir::Value* x, ir::Value* weights);

 private:
  bool mixes() const {
    return training() && (options_.mixup || options_.cutmix);
  }
  bool augments() const { return training() && options_.augment; }
  using Values = std::vector<ir::Value*>;
  // Without mixup, returns of(values), which are [N,..]. With mixup, returns
  // the weighted mean of that and of `of` of the batch's next samples. `of`
  // returns f32 [N,..]. `share` is the weight of of(values), a scalar or of the
  // same shape.
  ir::Value* Mix(const Values& values, ir::Value* share,
                 const std::function<ir::Value*(const Values&)>& of);
  // Returns x with each sample replaced by the next one, the last by the first.
  ir::Value* NextSamples(ir::Value* x);
  ir::Value* MeanColour();  // f32 [3]
  // Returns the levels of images u8 [N,S,S,3] as f32, changed by the inputs of
  // ModelOptions::augment.
  ir::Value* Augmented(ir::Value* bytes, ir::Value* colour, ir::Value* box);
  // Returns the weight of a sample's own label; null without mixup.
  ir::Value* LabelShare();
  // Returns the weight of a sample's own pixels, a scalar or of this shape;
  // null without mixup. Rows of pixels are in dimension `rows`, columns in the
  // next.
  ir::Value* PixelShare(const ir::Shape& shape, int64_t rows);
  // Returns one-hot labels, smoothed, in the shape of the logits.
  ir::Value* OneHot(ir::Value* labels, ir::Value* logits, double smoothing);
  // Returns the hyper-parameter input `name`, adding it if there is none.
  ir::Value* HyperParameter(const char* name, ir::DType dtype);
  ir::Value* Parameter(const std::string& name, ir::Shape shape,
                       ir::InputRole role, ir::Attrs init);
  ir::Value* Dense(ir::Value* x, const std::string& name, int64_t features,
                   ir::Attrs weight_init, ir::Attrs bias_init);

  ir::Builder& b_;
  Phase phase_;
  const ModelOptions& options_;
};

}  // namespace fusor::models
