#include "tests/testing/small_models.h"

#include "ir/builder.h"
#include "models/model.h"

namespace fusor::test {
namespace {

using ir::InputRole;

ir::Attrs Init(double value) {
  return {{"init", std::string("constant")}, {"value", value}};
}

std::unique_ptr<ir::Graph> Build(const std::string& arch, int64_t batch,
                                 int64_t image_size) {
  models::ModelOptions options;
  options.batch = batch;
  options.image_size = image_size;
  options.num_classes = 10;
  return models::BuildModel(arch, models::Phase::kTrain, options).graph;
}

}  // namespace

std::unique_ptr<ir::Graph> SmallMlp(int64_t batch) {
  using ir::DType;
  constexpr int64_t kFeatures = 12, kHidden = 16, kClasses = 4;
  auto graph = std::make_unique<ir::Graph>("mlp");
  const auto weight = [&](int64_t rows, int64_t columns, const char* name) {
    return graph->AddInput({DType::kF32, {rows, columns}, {}},
                           InputRole::kWeight, name,
                           {{"init", std::string("normal")}, {"std", 0.3}});
  };
  const auto vector = [&](int64_t size, InputRole role, const char* name,
                          double value) {
    return graph->AddInput({DType::kF32, {size}, {}}, role, name, Init(value));
  };
  ir::Builder b(*graph);
  ir::Value* x = graph->AddInput({DType::kF32, {batch, kFeatures}, {}},
                                 InputRole::kData, "images");
  ir::Value* labels =
      graph->AddInput({DType::kI32, {batch}, {}}, InputRole::kData, "labels");
  b.set_location("fc1");
  ir::Value* hidden =
      b.Linear(x, weight(kHidden, kFeatures, "fc1.weight"),
               vector(kHidden, InputRole::kBias, "fc1.bias", 0.1));
  b.set_location("bn1");
  const ir::BatchNormResult norm = b.BatchNormTrain(
      hidden, vector(kHidden, InputRole::kNormScale, "bn1.weight", 1),
      vector(kHidden, InputRole::kNormShift, "bn1.bias", 0.2), 1e-5);
  ir::Value* mean =
      vector(kHidden, InputRole::kStatistic, "bn1.running_mean", 0);
  ir::Value* kept = b.Plus(b.Times(mean, 0.9), b.Times(norm.mean, 0.1));
  b.set_location("fc2");
  ir::Value* logits =
      b.Linear(b.Relu(norm.y), weight(kClasses, kHidden, "fc2.weight"),
               vector(kClasses, InputRole::kBias, "fc2.bias", 0));
  b.set_location("loss");
  graph->AddOutput(b.ReduceMean(b.CrossEntropy(logits, labels, {}), {0}),
                   "loss");
  graph->AddOutput(kept, "bn1.running_mean", mean->index());
  return graph;
}

std::unique_ptr<ir::Graph> SmallResNet(int64_t batch) {
  return Build("resnet20-cifar", batch, 8);
}

std::unique_ptr<ir::Graph> SmallResNet18(int64_t batch) {
  return Build("resnet18", batch, 32);
}

}  // namespace fusor::test
