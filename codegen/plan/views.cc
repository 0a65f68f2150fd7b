#include "codegen/plan/views.h"

#include <algorithm>
#include <vector>

#include "ir/interpreter/host_tensor.h"
#include "ir/interpreter/interpreter.h"
#include "ir/op.h"

namespace fusor::codegen {

const ir::Value* StorageOf(const ir::Value* value) {
  while (value->producer() != nullptr && ir::IsView(*value->producer())) {
    value = value->producer()->input(0);
  }
  return value;
}

std::string ConstantBytes(const ir::Node& constant) {
  const std::vector<uint8_t> bytes =
      ir::TensorBytes(ir::InterpretNode(constant, {}, ir::EvalMode::kTyped)[0]);
  return {bytes.begin(), bytes.end()};
}

namespace {

using ir::Graph;
using ir::Node;
using ir::Value;

using Claims = std::unordered_map<const Value*, int>;

struct Reading {
  int step;
  int operand;
};

bool MayOverwrite(const LoweredNodes& lowered, const Node* node, int operand,
                  int result) {
  const auto it = lowered.find(node);
  if (it == lowered.end()) return false;
  return std::any_of(it->second.in_place.begin(), it->second.in_place.end(),
                     [&](const LoweredKernel::Alias& alias) {
                       return alias.operand == operand &&
                              alias.result == result;
                     });
}

// Removes the aliases of spans if not every result of the span has one.
void DropPartialSpans(std::span<Node* const> steps, const LoweredNodes& lowered,
                      Claims& claims) {
  for (const Node* node : steps) {
    const auto it = lowered.find(node);
    if (it == lowered.end()) continue;
    for (const std::vector<int>& span : it->second.result_spans) {
      const bool all = std::all_of(span.begin(), span.end(), [&](int result) {
        return claims.contains(node->output(result));
      });
      if (all) continue;
      for (int result : span) claims.erase(node->output(result));
    }
  }
}

}  // namespace

Claims AliasState(const Graph& graph, std::span<Node* const> steps,
                  const LoweredNodes& lowered) {
  std::unordered_map<const Node*, int> at;
  std::unordered_map<const Value*, std::vector<Reading>> readings;
  for (const Node* node : steps) {
    const auto step = static_cast<int>(at.size());
    at.emplace(node, step);
    for (size_t i = 0; i < node->num_inputs(); ++i) {
      readings[StorageOf(node->input(i))].push_back(
          {step, static_cast<int>(i)});
    }
  }
  // Inputs whose old value an output returns.
  std::set<const Value*> kept;
  for (const ir::Output& output : graph.outputs()) {
    const Value* storage = StorageOf(output.value);
    if (output.alias < 0 || graph.input(output.alias) != storage) {
      kept.insert(storage);
    }
  }
  Claims claims;
  for (const ir::Output& output : graph.outputs()) {
    if (output.alias < 0) continue;
    const Value* input = graph.input(output.alias);
    const Value* value = StorageOf(output.value);
    const auto producer = at.find(value->producer());
    if (producer == at.end() || kept.contains(input)) continue;
    const auto step_reads_first = [&](const Reading& reading) {
      return reading.step < producer->second ||
             (reading.step == producer->second &&
              MayOverwrite(lowered, value->producer(), reading.operand,
                           value->index()));
    };
    const std::vector<Reading>& all = readings[input];
    if (std::all_of(all.begin(), all.end(), step_reads_first)) {
      claims.emplace(value, output.alias);
    }
  }
  DropPartialSpans(steps, lowered, claims);
  return claims;
}

}  // namespace fusor::codegen
