#include "tools/inspect/observers/snapshot.h"

#include <filesystem>
#include <system_error>

#include "ir/interpreter/host_tensor.h"
#include "ir/io/printer.h"
#include "ir/support/error.h"
#include "ir/support/file.h"
#include "runtime/checkpoint/safetensors.h"

namespace fusor::runtime {

void WriteSnapshot(const std::string& folder, const ir::Graph& graph,
                   std::span<const ir::Tensor> inputs) {
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  FUSOR_CHECK(!failure, kUsage, "{}: {}", folder, failure.message());
  WriteFileAtomically(folder + "/module.txt", ir::Print(graph),
                      ErrorCode::kUsage);
  std::vector<NamedTensor> tensors;
  for (size_t i = 0; i < inputs.size(); ++i) {
    ir::Tensor logical = inputs[i];
    logical.type = graph.input(i)->type();
    logical.type.layout = {};
    tensors.push_back(
        {graph.input(i)->name(), logical.type, ir::TensorBytes(logical)});
  }
  WriteSafetensors(folder + "/inputs.safetensors", tensors);
}

std::vector<ir::Tensor> ReadInputs(const std::string& path,
                                   const ir::Graph& graph) {
  const Safetensors file = ReadSafetensors(path);
  std::vector<ir::Tensor> inputs;
  for (const ir::Input& input : graph.inputs()) {
    const std::string& name = input.value->name();
    ir::TensorType type = input.value->type();
    type.layout = {};
    const NamedTensor* tensor = file.Find(name);
    FUSOR_CHECK(tensor != nullptr, kCheckpoint, "{}: no tensor {}", path, name);
    FUSOR_CHECK(tensor->type == type, kCheckpoint,
                "{}: tensor {}: expected {}, got {}", path, name,
                ToString(type), ToString(tensor->type));
    inputs.push_back(
        {input.value->type(), ir::LoadTensor(type, tensor->bytes).data});
  }
  return inputs;
}

}  // namespace fusor::runtime
