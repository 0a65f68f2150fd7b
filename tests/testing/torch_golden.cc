#include "tests/testing/torch_golden.h"

#include "ir/support/error.h"
#include "ir/tensor_bytes.h"

namespace fusor::test {

TorchGolden::TorchGolden(const std::string& file)
    : file_(runtime::ReadSafetensors(FUSOR_GOLDEN_DIR "/torch/" + file)),
      spec_(nlohmann::json::parse(file_.metadata.at("spec"))) {}

bool TorchGolden::Has(const std::string& name) const {
  return file_.Find(name) != nullptr;
}

ir::Tensor TorchGolden::Get(const std::string& name) const {
  const runtime::NamedTensor* tensor = file_.Find(name);
  FUSOR_ASSERT(tensor != nullptr, "no stored tensor {}", name);
  return ir::LoadTensor(tensor->type, tensor->bytes);
}

}  // namespace fusor::test
