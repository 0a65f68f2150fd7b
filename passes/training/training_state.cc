#include "passes/training/training_state.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "ir/shard.h"
#include "ir/state_names.h"
#include "ir/support/error.h"
#include "ir/support/regex.h"
#include "passes/collectives/shard_layout.h"

namespace fusor::passes {

using ir::Graph;
using ir::InputRole;
using ir::Value;

std::vector<ParameterGradient> CollectGradients(const Graph& graph) {
  std::vector<ParameterGradient> gradients;
  for (size_t i = 0; i < graph.inputs().size(); ++i) {
    if (!IsParameter(graph.inputs()[i].role)) continue;
    const Value& parameter = *graph.input(i);
    const int output = graph.FindOutput(ir::GradientName(parameter.name()));
    if (output < 0) continue;
    Value* gradient = graph.outputs()[output].value;
    Value* shard = graph.FindInput(ir::ShardName(parameter.name()));
    Value* target = shard == nullptr ? graph.input(i) : shard;
    FUSOR_CHECK(gradient->type().shape == target->type().shape, kGraph,
                "optimizer: {} is {}, but its gradient is {}", target->name(),
                ToString(target->type()), ToString(gradient->type()));
    gradients.push_back({static_cast<int>(i), output, gradient, target});
  }
  const auto ready = [](const ParameterGradient& p) {
    const ir::Node* node = p.gradient->producer();
    return std::pair(node == nullptr ? -1 : node->position(),
                     p.gradient->index());
  };
  std::stable_sort(
      gradients.begin(), gradients.end(),
      [&](const auto& a, const auto& b) { return ready(a) < ready(b); });
  return gradients;
}

Value* TrainingInput(Graph& graph, const ir::TensorType& type, InputRole role,
                     const std::string& name, double initial, int64_t group) {
  Value* input = graph.FindInput(name);
  if (input == nullptr) {
    ir::Attrs attrs;
    if (IsState(role)) {
      attrs = {{"init", std::string("constant")}, {"value", initial}};
    }
    if (group >= 0) attrs.Set("group", group);
    return graph.AddInput(type, role, name, std::move(attrs));
  }
  const InputRole actual = graph.inputs()[input->index()].role;
  FUSOR_CHECK(input->type() == type && actual == role, kGraph,
              "optimizer: input {} already exists: expected {} {}, got {} {}",
              name, InputRoleName(role), ToString(type), InputRoleName(actual),
              ToString(input->type()));
  return input;
}

Value* ShardInput(Graph& graph, const Value& parameter,
                  std::string (*name)(std::string_view), int64_t ranks,
                  double initial) {
  const int64_t part =
      ir::ShardElements(parameter.type().num_elements(), ranks);
  const std::string shard = name(parameter.name());
  FUSOR_CHECK(graph.FindInput(shard) == nullptr, kGraph,
              "optimizer: input {} already exists", shard);
  return graph.AddInput({parameter.type().dtype, {part}, {}},
                        InputRole::kOptimizerState, shard,
                        {{"init", std::string("constant")},
                         {"value", initial},
                         {ir::kShardOf, parameter.name()}});
}

int64_t GroupIndex(const OptimizerOptions& options, const std::string& name) {
  for (size_t i = 0; i < options.groups.size(); ++i) {
    const Regex pattern(options.groups[i].pattern, "parameter group");
    if (pattern.Found(name)) return static_cast<int64_t>(i);
  }
  return -1;
}

int64_t UpdateGroup(const OptimizerOptions& options,
                    const ir::Input& parameter) {
  const int64_t group =
      GroupIndex(options, std::string(parameter.value->name()));
  const bool own_decay =
      group >= 0 && options.groups[group].weight_decay.has_value();
  const bool alike =
      options.kind != OptimizerKind::kLars &&
      (own_decay || options.weight_decay == options.norm_weight_decay);
  return 2 * (group + 1) +
         (alike || parameter.role == InputRole::kWeight ? 0 : 1);
}

Value* MicroBatchCount(Graph& graph) {
  return TrainingInput(graph, {ir::DType::kI32, {}, {}},
                       InputRole::kAccumulator, ir::kBatches);
}

ir::Location StepLocation(const Graph& graph, const char* path) {
  const int loss = graph.FindOutput("loss");
  if (loss < 0) return path;
  return {path, ir::LocationOf(*graph.outputs()[loss].value).source};
}

Value* SumOfSquares(ir::Builder& builder, Value* value) {
  Value* wide = builder.Cast(value, ir::DType::kF32);
  std::vector<int64_t> dims(value->type().rank());
  std::iota(dims.begin(), dims.end(), 0);
  return builder.ReduceSum(builder.Times(wide, wide), dims);
}

Value* LossScale(Graph& graph, const LossScaleOptions& options) {
  if (!options.scales()) return nullptr;
  return TrainingInput(graph, {ir::DType::kF32, {}, {}},
                       InputRole::kOptimizerState, ir::kLossScale,
                       options.initial);
}

}  // namespace fusor::passes
