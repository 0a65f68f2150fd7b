#include "tests/testing/torch_golden.h"

#include <algorithm>
#include <filesystem>

#include "ir/interpreter/host_tensor.h"
#include "ir/support/error.h"

namespace fusor::test {

namespace {

constexpr char kFolder[] = FUSOR_GOLDEN_DIR "/torch/";

}  // namespace

std::vector<std::string> TorchModels() {
  std::vector<std::string> models;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    const std::string name = entry.path().stem().string();
    if (entry.path().extension() == ".safetensors" && name != "ops") {
      models.push_back(name);
    }
  }
  std::sort(models.begin(), models.end());
  return models;
}

TorchGolden::TorchGolden(const std::string& file)
    : file_(runtime::ReadSafetensors(kFolder + file)),
      spec_(nlohmann::json::parse(file_.metadata.at("spec"))) {}

bool TorchGolden::Has(const std::string& name) const {
  return file_.Find(name) != nullptr;
}

ir::Tensor TorchGolden::Get(const std::string& name) const {
  const ir::TensorSource* tensor = file_.Find(name);
  FUSOR_ASSERT(tensor != nullptr, "no stored tensor {}", name);
  return ir::LoadTensor(tensor->type, ir::ReadWhole(*tensor));
}

}  // namespace fusor::test
