#include "runtime/checkpoint/weights.h"

#include <cstring>

#include "ir/support/error.h"
#include "ir/tensor_bytes.h"
#include "ir/training_names.h"
#include "runtime/checkpoint/safetensors.h"

namespace fusor::runtime {

bool IsModelState(ir::InputRole role) {
  return ir::IsParameter(role) || role == ir::InputRole::kStatistic;
}

void SaveWeights(const Session& session, const std::string& path,
                 WeightKind kind) {
  const bool averages = kind == WeightKind::kAverages;
  std::vector<NamedTensor> tensors;
  for (const codegen::StateLayout::Entry& entry : session.state().entries) {
    if (!IsModelState(session.StateRole(entry.name))) continue;
    const bool average =
        averages && ir::IsParameter(session.StateRole(entry.name));
    const std::string source =
        average ? ir::AverageName(entry.name) : entry.name;
    const bool shown = average && session.IsShard(source);
    const std::vector<float> values =
        session.ReadState(shown ? entry.name : source);
    NamedTensor tensor{entry.name, {ir::DType::kF32, entry.type.shape, {}}, {}};
    tensor.bytes.resize(values.size() * sizeof(float));
    std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
    tensors.push_back(std::move(tensor));
  }
  WriteSafetensors(path, tensors, {{"format", "pt"}});
}

void LoadWeights(Session& session, const std::string& path) {
  const Safetensors file = ReadSafetensors(path);
  std::vector<std::pair<std::string, std::vector<float>>> loaded;
  for (const codegen::StateLayout::Entry& entry : session.state().entries) {
    if (!IsModelState(session.StateRole(entry.name))) continue;
    const NamedTensor* tensor = file.Find(entry.name);
    FUSOR_CHECK(tensor != nullptr, kCheckpoint, "{}: tensor {} is missing",
                path, entry.name);
    FUSOR_CHECK(
        tensor->type.shape == entry.type.shape, kCheckpoint,
        "{}: tensor {}: expected {}, got {}", path, entry.name,
        ToString(ir::TensorType{entry.type.dtype, entry.type.shape, {}}),
        ToString(tensor->type));
    const ir::Tensor values =
        ir::LoadTensor(tensor->type, tensor->bytes.data());
    loaded.emplace_back(
        entry.name, std::vector<float>(values.data.begin(), values.data.end()));
  }
  for (const auto& [name, values] : loaded) session.WriteState(name, values);
}

}  // namespace fusor::runtime
