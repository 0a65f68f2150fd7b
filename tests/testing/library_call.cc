#include "tests/testing/library_call.h"

#include <bit>
#include <cstring>
#include <optional>

#include "ir/interpreter/host_tensor.h"
#include "ir/library_fusion.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "ir/support/hash.h"

namespace fusor::test {
namespace {

CallMemory* call_memory = nullptr;

// Hashes the call and its operands bit by bit.
uint64_t HashOf(const ir::Node& call,
                std::span<const ir::Tensor* const> operands) {
  uint64_t hash = HashBytes(codegen::Print(codegen::CallOf(call)));
  for (const ir::Tensor* operand : operands) {
    for (const double x : operand->data) {
      hash = (hash ^ std::bit_cast<uint64_t>(x)) * 0x9e3779b97f4a7c15ULL;
      hash ^= hash >> 32;
    }
  }
  return hash;
}

// Checks that, as for cuDNN, the addend is stored in the result's buffer.
void CheckAddsInPlace(const codegen::LibraryCall& call, void* const* args) {
  if (call.body == nullptr) return;
  const std::optional<size_t> operand = ir::AccumulatedInput(*call.body);
  FUSOR_CHECK(
      !operand.has_value() || args[*operand] == args[call.operands.size()],
      kInternal, "{}: expected the addend in the place of the result",
      call.op_name());
}

}  // namespace

CallMemory::CallMemory() { call_memory = this; }

CallMemory::~CallMemory() { call_memory = nullptr; }

std::vector<ir::Tensor> InterpretCall(
    const ir::Node& call, std::span<const ir::Tensor* const> operands) {
  if (call_memory == nullptr ||
      ir::LibraryOp(call).op().fusion != ir::FusionKind::kLibrary) {
    return ir::InterpretNode(call, operands, ir::EvalMode::kTyped);
  }
  const auto [it, added] =
      call_memory->results_.try_emplace(HashOf(call, operands));
  if (added) {
    it->second = ir::InterpretNode(call, operands, ir::EvalMode::kTyped);
  }
  return it->second;
}

codegen::LibraryCall EpilogueCall(ir::Graph& graph, const ir::Node& matmul,
                                  std::optional<ir::DType> bias, bool relu) {
  if (!bias.has_value() && !relu) return codegen::CallOf(matmul);
  ir::LibraryFusion fusion(matmul);
  if (bias.has_value()) {
    const ir::Shape columns{matmul.output()->type().shape.back()};
    fusion.AddBias(
        graph.AddInput({*bias, columns, {}}, ir::InputRole::kBias, "bias"));
  }
  if (relu) fusion.AddRelu();
  return codegen::CallOf(*std::move(fusion).Build(graph, nullptr));
}

void RunLibraryCall(const codegen::LibraryCall& call, void* const* args) {
  CheckAddsInPlace(call, args);
  ir::Graph graph;
  std::vector<ir::Value*> operands;
  std::vector<ir::Tensor> tensors;
  for (const ir::TensorType& type : call.operands) {
    tensors.push_back(ir::LoadTensor(type, args[operands.size()]));
    operands.push_back(graph.AddInput(type, ir::InputRole::kData, ""));
  }
  ir::Node* node = call.body == nullptr
                       ? graph.AddNode(call.op, operands, call.attrs)
                       : graph.AddNode(ir::OpKind::kFusion, operands,
                                       {{"kind", std::string("library")}}, {},
                                       nullptr, call.body->Clone());
  for (size_t i = 0; i < call.results.size(); ++i) {
    node->output(i)->set_type(call.results[i]);
  }
  std::vector<const ir::Tensor*> pointers;
  for (const ir::Tensor& tensor : tensors) pointers.push_back(&tensor);
  const auto results = InterpretCall(*node, pointers);
  void* const* result = args + operands.size();
  if (call.workspace_bytes > 0) {
    std::memset(result[results.size()], 0xee, call.workspace_bytes);
  }
  for (size_t i = 0; i < results.size(); ++i) {
    ir::StoreTensor(results[i], result[i]);
  }
}

}  // namespace fusor::test
