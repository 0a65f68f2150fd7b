#include "models/import/dense_loss.h"

#include <fmt/ranges.h>

#include <functional>
#include <numeric>
#include <utility>

#include "ir/ignored_label.h"
#include "ir/support/error.h"

namespace fusor::models {
namespace {

using ir::Builder;
using ir::DType;
using ir::InputRole;
using ir::Shape;
using ir::TensorType;
using ir::Value;

constexpr double kDenseAuxiliaryWeight = 0.5;

std::vector<int64_t> DimsFrom(int64_t first, const Value* x) {
  std::vector<int64_t> dims(static_cast<size_t>(RankOf(x) - first));
  std::iota(dims.begin(), dims.end(), first);
  return dims;
}

class DenseLoss {
 public:
  DenseLoss(Layers& layers, std::string path, std::vector<Value*> results)
      : layers_(layers),
        options_(layers.options()),
        b_(layers.builder()),
        path_(std::move(path)),
        results_(std::move(results)) {
    CheckResults();
    sample_ = results_[0]->type().shape;
    sample_.erase(sample_.begin());
    points_ = sample_;
    if (sample_.empty()) return;
    const size_t dim = ClassDim(sample_.size() + 1);
    classes_ = sample_[dim - 1];
    points_.erase(points_.begin() + static_cast<std::ptrdiff_t>(dim) - 1);
  }

  void Build() {
    const Builder::Scope scope(b_, "loss");
    if (!options_.sample.has_value() || !options_.sample->target.has_value()) {
      options_.loss == Loss::kCrossEntropy ? AddLabels() : AddValues(sample_);
    } else if (const TensorType& target = *options_.sample->target;
               HasValues(target)) {
      AddValues(target.shape);
    } else {
      CheckLabels(target);
      AddLabels();
    }
    if (!layers_.training() && options_.per_image) {
      b_.graph().AddOutput(results_[0], "logits");
    }
  }

 private:
  void CheckResults() const {
    const TensorType& type = results_.at(0)->type();
    FUSOR_CHECK(ir::IsFloat(type.dtype) && type.rank() > 0 &&
                    type.shape[0] == options_.batch,
                kGraph, "{}: first result: expected floats [{},..], got {}",
                path_, options_.batch, ToString(type));
    for (size_t i = 1; i < results_.size(); ++i) {
      FUSOR_CHECK(results_[i]->type() == type, kGraph,
                  "{}: result {}: expected {}, as the first one, got {}", path_,
                  i, ToString(type), ToString(results_[i]->type()));
    }
  }

  bool OneClass() const { return !sample_.empty() && classes_ == 1; }

  bool HasValues(const TensorType& target) const {
    return options_.loss != Loss::kCrossEntropy &&
           (target.shape == sample_ || (OneClass() && target.shape == points_));
  }

  void CheckLabels(const TensorType& target) const {
    std::string expected;
    if (!sample_.empty()) {
      expected = fmt::format("integers [{}]", fmt::join(points_, ","));
    }
    if (options_.loss != Loss::kCrossEntropy) {
      expected += fmt::format("{}values [{}]", expected.empty() ? "" : " or ",
                              fmt::join(sample_, ","));
    }
    const bool fits = !sample_.empty() && !ir::IsFloat(target.dtype) &&
                      target.dtype != DType::kBool && target.shape == points_;
    FUSOR_CHECK(fits, kData,
                "{}: tensor target: expected samples of {} for --loss {} and "
                "results {}, got {}",
                options_.sample->path,
                expected.empty() ? "values for --loss mse" : expected,
                LossName(options_.loss), ToString(results_[0]->type()),
                ToString(target));
  }

  static const char* LossName(Loss loss) {
    return loss == Loss::kCrossEntropy         ? "cross-entropy"
           : loss == Loss::kBinaryCrossEntropy ? "bce"
                                               : "mse";
  }

  Value* Input(const char* name, DType dtype, Shape shape) {
    shape.insert(shape.begin(), options_.batch);
    return b_.graph().AddInput({dtype, std::move(shape), {}}, InputRole::kData,
                               name);
  }

  Value* Weights() { return Input("weights", DType::kF32, {}); }

  // Adds the output "loss": `of` computes it from a result.
  void AddLoss(const std::function<Value*(Value*)>& of) {
    Value* total = of(results_[0]);
    for (size_t i = 1; i < results_.size(); ++i) {
      total = b_.Plus(total, b_.Times(of(results_[i]), kDenseAuxiliaryWeight));
    }
    b_.graph().AddOutput(total, "loss");
  }

  void AddValues(const Shape& shape) {
    FUSOR_CHECK(options_.label_smoothing == 0, kUsage,
                "--label-smoothing {}: expected targets that are labels, got "
                "values",
                options_.label_smoothing);
    Value* targets = Input("targets", DType::kF32, shape);
    const auto each = [&](Value* result) {
      Value* x = b_.Cast(b_.Reshape(result, ShapeOf(targets)), DType::kF32);
      if (options_.loss == Loss::kMeanSquaredError) {
        Value* error = b_.Minus(x, targets);
        return b_.Times(error, error);
      }
      return b_.Minus(b_.Softplus(x), b_.Times(targets, x));
    };
    if (layers_.training()) {
      return AddLoss([&](Value* result) {
        Value* losses = each(result);
        return b_.ReduceMean(losses, DimsFrom(0, losses));
      });
    }
    Value* losses = each(results_[0]);
    if (RankOf(losses) > 1) {
      losses = b_.ReduceMean(losses, DimsFrom(1, losses));
    }
    b_.graph().AddOutput(layers_.WeightedSum(losses, Weights()), "loss_sum");
  }

  // A result of rank 3 has its classes in the last dimension. Its points
  // become rows.
  bool HasRows() const { return sample_.size() == 2; }
  Value* Logits(Value* result) {
    Value* logits = b_.Cast(result, DType::kF32);
    return HasRows()
               ? b_.Reshape(logits, {options_.batch * points_[0], classes_})
               : logits;
  }

  Value* Sum(Value* x) { return b_.ReduceSum(x, DimsFrom(0, x)); }

  void AddLabels() {
    FUSOR_CHECK(!sample_.empty(), kGraph,
                "{}: first result: expected logits [{},C,..], got {}", path_,
                options_.batch, ToString(results_[0]->type()));
    FUSOR_CHECK(classes_ == options_.num_classes, kGraph,
                "{}: first result: expected {} classes (--num-classes), got {}",
                path_, options_.num_classes, ToString(results_[0]->type()));
    Value* given = Input("labels", DType::kI32, points_);
    Value* labels =
        HasRows() ? b_.Reshape(given, {given->type().num_elements()}) : given;
    Value* counts =
        b_.Compare("ne", labels, static_cast<double>(ir::kIgnoredLabel));
    labels = b_.Select(counts, labels, b_.Zeros(labels->type()));
    const auto each = [&](Value* result, double smoothing) {
      Value* losses = layers_.LabelLoss(Logits(result), labels, smoothing);
      return b_.Select(counts, losses, b_.Zeros(losses->type()));
    };
    Value* ones = b_.Cast(counts, DType::kF32);
    if (layers_.training()) {
      Value* count = Sum(ones);
      count = b_.Maximum(count, b_.ScalarLike(count, 1));
      return AddLoss([&](Value* result) {
        return b_.Divide(Sum(each(result, options_.label_smoothing)), count);
      });
    }
    Value* weights = b_.Broadcast(Weights(), ShapeOf(given), {0});
    weights = b_.Times(ones, b_.Reshape(weights, ShapeOf(labels)));
    const auto output = [&](Value* of, const char* name) {
      b_.graph().AddOutput(layers_.WeightedSum(of, weights), name);
    };
    Value* logits = Logits(results_[0]);
    output(each(results_[0], /*smoothing=*/0), "loss_sum");
    output(b_.TopKCorrect(logits, labels, 1), "top1");
    output(b_.TopKCorrect(logits, labels, 5), "top5");
    b_.graph().AddOutput(Sum(weights), "counted");
  }

  Layers& layers_;
  const ModelOptions& options_;
  Builder& b_;
  const std::string path_;
  const std::vector<Value*> results_;
  Shape sample_;         // of a sample's result
  Shape points_;         // the same without the classes
  int64_t classes_ = 0;  // 0: a result [N]
};

}  // namespace

size_t ClassDim(size_t rank) { return rank == 3 ? 2 : 1; }

void AddDenseLoss(Layers& layers, const std::string& path,
                  const std::vector<Value*>& results) {
  DenseLoss(layers, path, results).Build();
}

}  // namespace fusor::models
