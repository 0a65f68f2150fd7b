#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "ir/support/error.h"
#include "ir/support/str.h"
#include "models/architectures.h"
#include "models/model.h"

namespace fusor::models {
namespace {

constexpr std::string_view kSuffix = "-v1.5";

// All families' architectures.
std::vector<Architecture> Architectures() {
  std::vector<Architecture> all;
  for (const auto family : kFamilies) {
    all.insert(all.end(), family().begin(), family().end());
  }
  return all;
}

std::optional<Architecture> FindArchitecture(std::string_view arch) {
  for (const Architecture& row : Architectures()) {
    if (row.name == arch ||
        (row.name.ends_with(kSuffix) &&
         row.name.substr(0, row.name.size() - kSuffix.size()) == arch)) {
      return row;
    }
  }
  return std::nullopt;
}

std::map<std::string, CustomModel>& CustomModels() {
  static std::map<std::string, CustomModel> models;
  return models;
}

std::unique_ptr<ir::Graph> BuildCustom(const CustomModel& model, Phase phase,
                                       const ModelOptions& options) {
  FUSOR_CHECK(model.batch == 0 || model.batch == options.batch, kGraph,
              "{}: its batch is {}, expected {}", model.name, model.batch,
              options.batch);
  FUSOR_CHECK(model.image_size == 0 || model.image_size == options.image_size,
              kGraph, "{}: its image size is {}, expected {}", model.name,
              model.image_size, options.image_size);
  const bool has = phase == Phase::kTrain ? model.trains : model.evaluates;
  FUSOR_CHECK(has, kGraph, "{}: {}", model.name,
              phase == Phase::kTrain
                  ? "expected output \"loss\" of a forward graph, to be "
                    "trained; got none"
                  : "expected outputs \"loss_sum\", \"top1\" and \"top5\", to "
                    "be evaluated; got not all of them");
  auto graph = model.build == nullptr ? nullptr : model.build(phase, options);
  FUSOR_CHECK(graph != nullptr, kGraph,
              "custom model {}: expected a graph, got null", model.name);
  return graph;
}

std::unique_ptr<ir::Graph> BuildArchitecture(const Architecture& row,
                                             Phase phase, const Model& model) {
  const ModelOptions& options = model.options;
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
  auto graph = std::make_unique<ir::Graph>(name);
  ir::Builder builder(*graph);
  Layers layers(builder, phase, options);
  row.build(layers);
  return graph;
}

}  // namespace

void RegisterModel(CustomModel model) {
  std::string name = model.name;
  CustomModels().insert_or_assign(std::move(name), std::move(model));
}

const CustomModel* FindCustomModel(const std::string& name) {
  const auto found = CustomModels().find(name);
  return found == CustomModels().end() ? nullptr : &found->second;
}

std::vector<std::string> ArchNames() {
  std::vector<std::string> names;
  for (const Architecture& row : Architectures()) names.emplace_back(row.name);
  for (const Architecture& row : Architectures()) {
    if (row.name.ends_with(kSuffix)) {
      names.emplace_back(row.name.substr(0, row.name.size() - kSuffix.size()));
    }
  }
  return names;
}

std::string CanonicalArch(const std::string& arch) {
  if (const auto row = FindArchitecture(arch)) return std::string(row->name);
  if (FindCustomModel(arch) != nullptr) return arch;
  const std::vector<std::string> names = ArchNames();
  const std::string nearest = NearestName(arch, names);
  ThrowError(
      ErrorCode::kUsage,
      fmt::format("arch {}: unknown{}; known: {}", arch,
                  nearest.empty() ? "" : ", did you mean " + nearest + "?",
                  Join(names, ", ", [](const auto& n) { return n; })));
}

Model BuildModel(const std::string& arch, Phase phase,
                 const ModelOptions& options) {
  Model model{CanonicalArch(arch), options, nullptr};
  const CustomModel* custom = FindCustomModel(model.arch);
  if (custom != nullptr) return BuildModel(*custom, phase, options);
  model.graph = BuildArchitecture(*FindArchitecture(model.arch), phase, model);
  if (phase == Phase::kTrain) FreezeParameters(*model.graph, options.freeze);
  return model;
}

Model BuildModel(const CustomModel& custom, Phase phase,
                 const ModelOptions& options) {
  Model model{custom.name, options, BuildCustom(custom, phase, options)};
  if (phase == Phase::kTrain) FreezeParameters(*model.graph, options.freeze);
  return model;
}

bool SameNetwork(const std::string& a, const std::string& b) {
  const auto first = FindArchitecture(a);
  const auto second = FindArchitecture(b);
  return first && second && first->build == second->build;
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
