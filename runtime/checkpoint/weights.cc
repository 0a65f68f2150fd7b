#include "runtime/checkpoint/weights.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "ir/interpreter/host_tensor.h"
#include "ir/state_names.h"
#include "ir/support/error.h"

namespace fusor::runtime {
namespace {

constexpr std::string_view kWrapperPrefixes[] = {"module.", "_orig_mod."};
constexpr std::string_view kBatchCount = "num_batches_tracked";

std::string_view WithoutWrappers(std::string_view name) {
  for (bool found = true; found;) {
    found = false;
    for (const std::string_view prefix : kWrapperPrefixes) {
      if (!name.starts_with(prefix)) continue;
      name.remove_prefix(prefix.size());
      found = true;
    }
  }
  return name;
}

// Returns the last weight's layer prefix, e.g. "fc."; empty if there is none.
std::string HeadPrefix(const Session& session) {
  std::string head;
  for (const ir::Input& input : session.graph(0).inputs()) {
    if (input.role != ir::InputRole::kWeight) continue;
    const std::string& name = input.value->name();
    head = name.substr(0, name.rfind('.') + 1);
  }
  return head;
}

}  // namespace

bool IsModelState(ir::InputRole role) {
  return ir::IsParameter(role) || role == ir::InputRole::kStatistic;
}

void SaveWeights(const Session& session, const std::string& path,
                 WeightKind kind, const Metadata& description) {
  const bool averages = kind == WeightKind::kAverages;
  FUSOR_CHECK(!averages || session.state().Find(ir::kAverages) != nullptr,
              kCheckpoint, "{}: this run keeps no moving averages", path);
  std::vector<NamedTensor> tensors;
  for (const codegen::StateLayout::Entry& entry : session.state().entries) {
    if (!IsModelState(session.StateRole(entry.name))) continue;
    const std::string average = ir::AverageName(entry.name);
    const bool averaged = averages && session.state().Find(average) != nullptr;
    const bool shown = averaged && session.IsShard(average);
    const std::vector<float> values =
        session.ReadState(averaged && !shown ? average : entry.name);
    NamedTensor tensor{entry.name, {ir::DType::kF32, entry.type.shape, {}}, {}};
    tensor.bytes.resize(values.size() * sizeof(float));
    std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
    tensors.push_back(std::move(tensor));
  }
  Metadata metadata = description;
  metadata["format"] = "pt";
  WriteSafetensors(path, tensors, metadata);
}

Safetensors ReadWeights(const std::string& path) {
  Safetensors file = ReadSafetensors(path);
  for (NamedTensor& tensor : file.tensors) {
    std::string name(WithoutWrappers(tensor.name));
    FUSOR_CHECK(name == tensor.name || file.Find(name) == nullptr, kCheckpoint,
                "{}: tensors {} and {} are the same tensor of a model", path,
                tensor.name, name);
    tensor.name = std::move(name);
  }
  return file;
}

WeightMatch LoadWeights(Session& session, const Safetensors& file,
                        const std::string& path, WeightUse use) {
  const std::string head =
      use == WeightUse::kNewHead ? HeadPrefix(session) : "";
  WeightMatch match;
  std::vector<std::pair<std::string, std::vector<float>>> loaded;
  for (const codegen::StateLayout::Entry& entry : session.state().entries) {
    if (!IsModelState(session.StateRole(entry.name))) continue;
    const NamedTensor* tensor = file.Find(entry.name);
    const bool fits =
        tensor != nullptr && tensor->type.shape == entry.type.shape;
    if (!fits && !head.empty() && entry.name.starts_with(head)) {
      match.initialized.push_back(entry.name);
      continue;
    }
    FUSOR_CHECK(tensor != nullptr, kCheckpoint, "{}: tensor {} is missing",
                path, entry.name);
    FUSOR_CHECK(
        fits, kCheckpoint, "{}: tensor {}: expected {}, got {}", path,
        entry.name,
        ToString(ir::TensorType{entry.type.dtype, entry.type.shape, {}}),
        ToString(tensor->type));
    const ir::Tensor values =
        ir::LoadTensor(tensor->type, tensor->bytes.data());
    loaded.emplace_back(
        entry.name, std::vector<float>(values.data.begin(), values.data.end()));
  }
  for (const auto& [name, values] : loaded) session.WriteState(name, values);
  for (const NamedTensor& tensor : file.tensors) {
    const bool used = session.state().Find(tensor.name) != nullptr &&
                      IsModelState(session.StateRole(tensor.name));
    if (!used && !tensor.name.ends_with(kBatchCount)) {
      match.unused.push_back(tensor.name);
    }
  }
  return match;
}

void LoadWeights(Session& session, const std::string& path) {
  LoadWeights(session, ReadWeights(path), path);
}

}  // namespace fusor::runtime
