#include "ir/interpreter/interpreter.h"

#include <unordered_map>

#include "ir/op.h"
#include "ir/support/error.h"

namespace fusor::ir {
namespace {

using Operands = std::span<const Tensor* const>;

void RoundResult(Tensor& tensor, EvalMode mode) {
  const DType dtype = tensor.type.dtype;
  if (dtype == DType::kF64 || (IsFloat(dtype) && mode == EvalMode::kExact)) {
    return;
  }
  if (dtype == DType::kF32) {
    for (double& x : tensor.data) x = static_cast<float>(x);
    return;
  }
  for (double& x : tensor.data) x = RoundTo(dtype, x);
}

template <size_t kArity>
void EvalElements(ScalarFunction function, Operands in, Tensor& out) {
  const double* from[kArity];
  for (size_t j = 0; j < kArity; ++j) from[j] = in[j]->data.data();
  double operands[kArity];
  for (size_t i = 0; i < out.data.size(); ++i) {
    for (size_t j = 0; j < kArity; ++j) operands[j] = from[j][i];
    out.data[i] = function(operands);
  }
}

void EvalElementwise(const Node& node, Operands in, Tensor& out) {
  const ScalarFunction function = ScalarEvaluator(NodeScalar(node));
  switch (in.size()) {
    case 1:
      return EvalElements<1>(function, in, out);
    case 2:
      return EvalElements<2>(function, in, out);
    case 3:
      return EvalElements<3>(function, in, out);
    default:
      FUSOR_ASSERT(false, "{} of {} operands", node.op_name(), in.size());
  }
}

void CheckTensor(const Tensor& tensor, const TensorType& type,
                 std::string_view name) {
  FUSOR_CHECK(
      tensor.type.dtype == type.dtype && tensor.type.shape == type.shape &&
          static_cast<int64_t>(tensor.data.size()) == type.num_elements(),
      kGraph, "interpreter: {}: expected {}, got {} with {} elements", name,
      ToString(type), ToString(tensor.type), tensor.data.size());
}

using Tensors = std::unordered_map<const Value*, Tensor>;

std::vector<Tensor> Run(const Graph& graph, Operands inputs, EvalMode mode,
                        const ValueVisitor& visit);

std::vector<Tensor> RunNode(const Node& node, Operands in, EvalMode mode) {
  if (node.body() != nullptr) return Run(*node.body(), in, mode, nullptr);
  std::vector<Tensor> results;
  std::vector<Tensor*> pointers;
  results.reserve(node.num_outputs());
  for (size_t i = 0; i < node.num_outputs(); ++i) {
    const TensorType& type = node.output(i)->type();
    results.push_back({type, std::vector<double>(type.num_elements(), 0)});
    pointers.push_back(&results.back());
  }
  if (node.op().eval != nullptr) {
    node.op().eval(node, in, pointers, mode);
  } else {
    FUSOR_ASSERT(node.op().fusion == FusionKind::kElementwise,
                 "{} has no interpreter rule", node.op_name());
    EvalElementwise(node, in, results[0]);
  }
  for (Tensor& result : results) RoundResult(result, mode);
  return results;
}

// Returns each value's last reader's position; outputs are read at the end.
std::unordered_map<const Value*, int> LastReaders(const Graph& graph) {
  std::unordered_map<const Value*, int> last;
  for (const auto& node : graph.nodes()) {
    for (const Value* value : node->inputs()) last[value] = node->position();
  }
  const int end = static_cast<int>(graph.nodes().size());
  for (const Output& output : graph.outputs()) last[output.value] = end;
  return last;
}

void FreeOperands(const Node& node,
                  const std::unordered_map<const Value*, int>& last,
                  Tensors& live) {
  for (const Value* value : node.inputs()) {
    if (last.at(value) == node.position()) live.erase(value);
  }
}

std::vector<Tensor> Run(const Graph& graph, Operands inputs, EvalMode mode,
                        const ValueVisitor& visit) {
  FUSOR_CHECK(inputs.size() == graph.inputs().size(), kGraph,
              "interpreter: graph {}: expected {} inputs, got {}", graph.name(),
              graph.inputs().size(), inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Value& value = *graph.input(i);
    CheckTensor(*inputs[i], value.type(), value.name());
    if (visit) visit(value, *inputs[i]);
  }
  const auto last = LastReaders(graph);
  Tensors live;
  const auto tensor_of = [&](const Value* value) -> const Tensor* {
    return value->producer() == nullptr ? inputs[value->index()]
                                        : &live.at(value);
  };
  for (const auto& node : graph.nodes()) {
    std::vector<const Tensor*> operands;
    for (const Value* value : node->inputs()) {
      operands.push_back(tensor_of(value));
    }
    std::vector<Tensor> results = RunNode(*node, operands, mode);
    FreeOperands(*node, last, live);
    for (size_t i = 0; i < results.size(); ++i) {
      const Value* value = node->output(i);
      if (visit) visit(*value, results[i]);
      if (last.contains(value)) live.emplace(value, std::move(results[i]));
    }
  }
  std::vector<Tensor> outputs;
  for (const Output& output : graph.outputs()) {
    outputs.push_back(*tensor_of(output.value));
  }
  return outputs;
}

}  // namespace

std::vector<Tensor> Interpret(const Graph& graph,
                              std::span<const Tensor> inputs, EvalMode mode) {
  return Interpret(graph, inputs, mode, nullptr);
}

std::vector<Tensor> Interpret(const Graph& graph,
                              std::span<const Tensor> inputs, EvalMode mode,
                              const ValueVisitor& visit) {
  std::vector<const Tensor*> pointers;
  for (const Tensor& input : inputs) pointers.push_back(&input);
  return Run(graph, pointers, mode, visit);
}

std::vector<Tensor> InterpretNode(const Node& node,
                                  std::span<const Tensor* const> inputs,
                                  EvalMode mode) {
  FUSOR_CHECK(inputs.size() == node.num_inputs(), kGraph,
              "interpreter: {}: expected {} operands, got {}", node.op_name(),
              node.num_inputs(), inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    CheckTensor(*inputs[i], node.input(i)->type(), node.input(i)->name());
  }
  return RunNode(node, inputs, mode);
}

}  // namespace fusor::ir
