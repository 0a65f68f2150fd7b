#include "tools/inspect/observers/step_values.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "codegen/plan/views.h"
#include "ir/interpreter/host_tensor.h"
#include "ir/io/printer.h"
#include "ir/support/error.h"
#include "ir/support/file.h"
#include "runtime/data/files/safetensors.h"

namespace fusor::inspect {

using codegen::ArgUse;
using codegen::Plan;
using codegen::Step;
using codegen::StepKind;

StepValues ValuesOfStep(const Plan& plan, const Step& step) {
  StepValues values;
  for (size_t i = 0; i < step.args.size(); ++i) {
    const ArgUse use = UseOfArg(plan, step, i);
    if (use == ArgUse::kScratch) continue;
    std::vector<int>& list =
        use == ArgUse::kRead ? values.operands : values.results;
    const std::vector<int>& members = plan.buffers[step.args[i]].members;
    if (members.empty()) {
      list.push_back(step.args[i]);
    } else {
      list.insert(list.end(), members.begin(), members.end());
    }
  }
  return values;
}

const ir::Node& NodeOfStep(const ir::Graph& graph, const Step& step) {
  const auto found = std::ranges::find_if(graph.nodes(), [&](const auto& node) {
    return node->output()->name() == step.name;
  });
  FUSOR_ASSERT(found != graph.nodes().end(), "{}: no node computes {}",
               graph.name(), step.name);
  return **found;
}

std::vector<size_t> InputsOfOperands(const ir::Node& node) {
  std::vector<size_t> input_of;
  size_t inputs = 0;
  for (size_t i = 0; i < node.num_inputs(); ++i) {
    size_t same = 0;  // first operand with the same buffer and type
    while (codegen::StorageOf(node.input(same)) !=
               codegen::StorageOf(node.input(i)) ||
           node.input(same)->type() != node.input(i)->type()) {
      ++same;
    }
    input_of.push_back(same == i ? inputs++ : input_of[same]);
  }
  return input_of;
}

std::vector<ir::Tensor> OperandTensors(std::span<const ir::Tensor> inputs,
                                       std::span<const size_t> input_of) {
  std::vector<ir::Tensor> operands;
  for (size_t input : input_of) operands.push_back(inputs[input]);
  return operands;
}

std::unique_ptr<ir::Graph> GraphOfNode(const ir::Node& node) {
  auto graph = std::make_unique<ir::Graph>(node.output()->name());
  const std::vector<size_t> input_of = InputsOfOperands(node);
  std::vector<ir::Value*> operands;
  for (size_t i = 0; i < node.num_inputs(); ++i) {
    if (input_of[i] == graph->inputs().size()) {
      graph->AddInput(node.input(i)->type(), ir::InputRole::kData,
                      node.input(i)->name());
    }
    operands.push_back(graph->input(input_of[i]));
  }
  ir::Node* copy = graph->AddNode(
      node.kind(), operands, node.attrs(), node.location(), nullptr,
      node.body() == nullptr ? nullptr : node.body()->Clone());
  for (size_t i = 0; i < copy->num_outputs(); ++i) {
    const std::string& name = node.output(i)->name();
    copy->output(i)->set_type(node.output(i)->type());
    graph->Rename(copy->output(i), name);
    graph->AddOutput(copy->output(i), name);
  }
  return graph;
}

namespace {

// Counts the elements whose exponent bits, `mask`, are all ones.
template <typename Bits>
int64_t CountFullExponents(std::span<const uint8_t> bytes, Bits mask) {
  int64_t count = 0;
  for (size_t i = 0; i + sizeof(Bits) <= bytes.size(); i += sizeof(Bits)) {
    Bits bits;
    std::memcpy(&bits, bytes.data() + i, sizeof(bits));
    count += (bits & mask) == mask;
  }
  return count;
}

}  // namespace

int64_t CountNonFinite(const ir::TensorType& type,
                       std::span<const uint8_t> bytes) {
  switch (type.dtype) {
    case ir::DType::kF64:
      return CountFullExponents<uint64_t>(bytes, 0x7ff0000000000000);
    case ir::DType::kF32:
      return CountFullExponents<uint32_t>(bytes, 0x7f800000);
    case ir::DType::kF16:
      return CountFullExponents<uint16_t>(bytes, 0x7c00);
    case ir::DType::kBF16:
      return CountFullExponents<uint16_t>(bytes, 0x7f80);
    default:
      return 0;
  }
}

void WriteSnapshot(const std::string& folder, const ir::Graph& graph,
                   std::span<const ir::Tensor> inputs) {
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  FUSOR_CHECK(!failure, kUsage, "{}: {}", folder, failure.message());
  WriteFileAtomically(folder + "/module.txt", ir::Print(graph),
                      ErrorCode::kUsage);
  std::vector<runtime::NamedTensor> tensors;
  for (size_t i = 0; i < inputs.size(); ++i) {
    ir::Tensor logical = inputs[i];
    logical.type = graph.input(i)->type();
    logical.type.layout = {};
    tensors.push_back(
        {graph.input(i)->name(), logical.type, ir::TensorBytes(logical)});
  }
  runtime::WriteSafetensors(folder + "/inputs.safetensors",
                            runtime::SourcesOf(tensors));
}

std::vector<ir::Tensor> ReadInputs(const std::string& path,
                                   const ir::Graph& graph) {
  const runtime::Safetensors file = runtime::ReadSafetensors(path);
  std::vector<ir::Tensor> inputs;
  for (const ir::Input& input : graph.inputs()) {
    const std::string& name = input.value->name();
    ir::TensorType type = input.value->type();
    type.layout = {};
    const ir::TensorSource* tensor = file.Find(name);
    FUSOR_CHECK(tensor != nullptr, kCheckpoint, "{}: no tensor {}", path, name);
    FUSOR_CHECK(tensor->type == type, kCheckpoint,
                "{}: tensor {}: expected {}, got {}", path, name,
                ToString(type), ToString(tensor->type));
    inputs.push_back({input.value->type(),
                      ir::LoadTensor(type, ir::ReadWhole(*tensor)).data});
  }
  return inputs;
}

}  // namespace fusor::inspect
