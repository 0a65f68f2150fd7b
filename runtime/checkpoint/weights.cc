#include "runtime/checkpoint/weights.h"

#include <algorithm>
#include <string_view>
#include <utility>

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
std::string HeadPrefix(const StateStore& state) {
  std::string head;
  for (const codegen::StateLayout::Entry& entry : state.layout().entries) {
    if (state.Role(entry.name) != ir::InputRole::kWeight) continue;
    head = entry.name.substr(0, entry.name.rfind('.') + 1);
  }
  return head;
}

}  // namespace

bool IsModelState(ir::InputRole role) {
  return ir::IsParameter(role) || role == ir::InputRole::kStatistic;
}

void SaveWeights(StateStore& state, const std::string& path, WeightKind kind,
                 const Metadata& description) {
  const bool averages = kind == WeightKind::kAverages;
  FUSOR_CHECK(!averages || state.Has(ir::kAverages), kCheckpoint,
              "{}: this run keeps no moving averages", path);
  state.Require(averages ? ParameterView::kAverages : ParameterView::kCurrent,
                path);
  std::vector<ir::TensorSource> tensors;
  for (const codegen::StateLayout::Entry& entry : state.layout().entries) {
    if (!IsModelState(state.Role(entry.name))) continue;
    const std::string average = ir::AverageName(entry.name);
    const bool averaged = averages && state.Has(average);
    const bool shown = averaged && state.IsShard(average);
    tensors.push_back(
        ir::Converted(state.Source(averaged && !shown ? average : entry.name),
                      ir::DType::kF32));
    tensors.back().name = entry.name;
  }
  Metadata metadata = description;
  metadata["format"] = "pt";
  WriteSafetensors(path, tensors, metadata);
}

Safetensors ReadWeights(const std::string& path) {
  Safetensors file = ReadSafetensors(path);
  for (ir::TensorSource& tensor : file.tensors) {
    std::string name(WithoutWrappers(tensor.name));
    FUSOR_CHECK(name == tensor.name || file.Find(name) == nullptr, kCheckpoint,
                "{}: tensors {} and {} are the same tensor of a model", path,
                tensor.name, name);
    tensor.name = std::move(name);
  }
  return file;
}

WeightMatch LoadWeights(StateStore& state, const Safetensors& file,
                        const std::string& path, WeightUse use) {
  const std::string head = use == WeightUse::kNewHead ? HeadPrefix(state) : "";
  WeightMatch match;
  std::vector<ir::TensorSource> loaded;
  for (const codegen::StateLayout::Entry& entry : state.layout().entries) {
    if (!IsModelState(state.Role(entry.name))) continue;
    const ir::TensorSource* tensor = file.Find(entry.name);
    const bool fits =
        tensor != nullptr && tensor->type.shape == entry.type.shape;
    const bool optional = use == WeightUse::kAvailable ||
                          (!head.empty() && entry.name.starts_with(head));
    if (!fits && optional) {
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
    // Through f32, as parameters of a training program are.
    loaded.push_back(ir::Converted(*tensor, ir::DType::kF32));
  }
  for (const ir::TensorSource& tensor : loaded) state.Write(tensor);
  for (const ir::TensorSource& tensor : file.tensors) {
    const bool used =
        state.Has(tensor.name) && IsModelState(state.Role(tensor.name));
    if (!used && !tensor.name.ends_with(kBatchCount)) {
      match.unused.push_back(tensor.name);
    }
  }
  return match;
}

void LoadWeights(StateStore& state, const std::string& path) {
  LoadWeights(state, ReadWeights(path), path);
}

}  // namespace fusor::runtime
