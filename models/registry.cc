#include <algorithm>

#include "ir/builder.h"
#include "ir/support/error.h"
#include "ir/support/str.h"
#include "models/architectures.h"
#include "models/model.h"

namespace fusor::models {
namespace {

struct Row {
  std::string_view name;
  int64_t min_image_size;
  void (*build)(Layers& layers);
};

template <int a, int b, int c, int d, bool bottleneck>
void ResNet(Layers& layers) {
  BuildResNet(layers, {{a, b, c, d}, bottleneck});
}

constexpr Row kRows[] = {
    {"resnet18-v1.5", 32, ResNet<2, 2, 2, 2, false>},
    {"resnet34-v1.5", 32, ResNet<3, 4, 6, 3, false>},
    {"resnet50-v1.5", 32, ResNet<3, 4, 6, 3, true>},
    {"resnet101-v1.5", 32, ResNet<3, 4, 23, 3, true>},
    {"resnet152-v1.5", 32, ResNet<3, 8, 36, 3, true>},
    // gluon's v1b: the same network as torchvision's under gluon's name.
    {"resnet50-v1b", 32, ResNet<3, 4, 6, 3, true>},
    {"resnet50-v1", 32,
     [](Layers& layers) {
       BuildResNet(layers, {.blocks = {3, 4, 6, 3},
                            .bottleneck = true,
                            .stride_in_1x1 = true,
                            .conv_bias = true});
     }},
    {"vgg16", 32, [](Layers& layers) { BuildVgg16(layers, false); }},
    {"vgg16-bn", 32, [](Layers& layers) { BuildVgg16(layers, true); }},
    {"resnet20-cifar", 8, BuildResNet20Cifar},
};

constexpr std::string_view kSuffix = "-v1.5";

}  // namespace

std::vector<std::string> ArchNames() {
  std::vector<std::string> names;
  for (const Row& row : kRows) names.emplace_back(row.name);
  for (const Row& row : kRows) {
    if (row.name.ends_with(kSuffix)) {
      names.emplace_back(row.name.substr(0, row.name.size() - kSuffix.size()));
    }
  }
  return names;
}

std::string CanonicalArch(const std::string& arch) {
  const std::vector<std::string> names = ArchNames();
  const bool known = std::find(names.begin(), names.end(), arch) != names.end();
  const std::string nearest = known ? "" : NearestName(arch, names);
  FUSOR_CHECK(known, kUsage, "arch {}: unknown{}; known: {}", arch,
              nearest.empty() ? "" : ", did you mean " + nearest + "?",
              Join(names, ", ", [](const std::string& n) { return n; }));
  const bool exact = std::any_of(std::begin(kRows), std::end(kRows),
                                 [&](const Row& r) { return r.name == arch; });
  return exact ? arch : arch + std::string(kSuffix);
}

Model BuildModel(const std::string& arch, Phase phase,
                 const ModelOptions& options) {
  Model model{CanonicalArch(arch), options, nullptr};
  const Row& row =
      *std::find_if(std::begin(kRows), std::end(kRows),
                    [&](const Row& r) { return r.name == model.arch; });
  FUSOR_CHECK(options.image_size >= row.min_image_size, kGraph,
              "arch {}: image size {}: expected at least {}", model.arch,
              options.image_size, row.min_image_size);
  FUSOR_CHECK(options.batch >= 1 && options.num_classes >= 1, kGraph,
              "arch {}: batch {}, {} classes: expected at least 1", model.arch,
              options.batch, options.num_classes);
  std::string name = model.arch;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '-' || c == '.'; },
      '_');
  model.graph = std::make_unique<ir::Graph>(name);
  ir::Builder builder(*model.graph);
  Layers layers(builder, phase, model.options);
  row.build(layers);
  return model;
}

ParameterCount CountParameters(const ir::Graph& graph) {
  ParameterCount count;
  for (const ir::Input& input : graph.inputs()) {
    if (!IsParameter(input.role)) continue;
    ++count.tensors;
    count.parameters += input.value->type().num_elements();
  }
  return count;
}

}  // namespace fusor::models
