#include "codegen/plan/views.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "ir/interpreter/host_tensor.h"
#include "ir/interpreter/interpreter.h"

namespace fusor::codegen {
namespace {

using ir::PhysicalAxis;
using ir::TensorType;

// Returns the loops of the physical order in canonical form: without loops of
// extent 1, and with adjacent loops merged that traverse one dimension
// contiguously. Equal physical orders have equal loops.
std::vector<PhysicalAxis> NormalAxes(const TensorType& type) {
  std::vector<PhysicalAxis> axes;
  for (const PhysicalAxis& axis : ir::PhysicalAxes(type)) {
    if (axis.extent == 1) continue;
    if (!axes.empty()) {
      PhysicalAxis& outer = axes.back();
      if (outer.dim == axis.dim && outer.step == axis.step * axis.extent &&
          outer.stride == axis.stride * axis.extent) {
        outer = {axis.dim, axis.step, outer.extent * axis.extent, axis.stride};
        continue;
      }
    }
    axes.push_back(axis);
  }
  return axes;
}

bool SamePhysicalOrder(const TensorType& a, const TensorType& b) {
  const auto key = [](const PhysicalAxis& axis) {
    return std::tuple(axis.dim, axis.step, axis.extent, axis.stride);
  };
  const std::vector<PhysicalAxis> x = NormalAxes(a);
  const std::vector<PhysicalAxis> y = NormalAxes(b);
  return std::equal(
      x.begin(), x.end(), y.begin(), y.end(),
      [&](const auto& p, const auto& q) { return key(p) == key(q); });
}

// Returns whether the physical order of `type` is the attribute `order` of a
// flatten or unflatten.
bool IsOrdered(const TensorType& type, const ir::Node& node) {
  return SamePhysicalOrder(
      type,
      {type.dtype, type.shape, ir::ParseLayout(node.attrs().String("order"))});
}

// A blocked layout with a single block is row-major, too.
bool IsRowMajor(const TensorType& type) {
  return SamePhysicalOrder(type, {type.dtype, type.shape, {}});
}

}  // namespace

bool IsView(const ir::Node& node) {
  if (node.kind() == ir::OpKind::kReshape) {
    return IsRowMajor(node.input(0)->type()) &&
           IsRowMajor(node.output()->type());
  }
  if (node.kind() == ir::OpKind::kFlatten) {
    return IsOrdered(node.input(0)->type(), node);
  }
  if (node.kind() == ir::OpKind::kUnflatten) {
    return IsOrdered(node.output()->type(), node);
  }
  return node.kind() == ir::OpKind::kCopy &&
         node.input(0)->type().dtype == node.output()->type().dtype &&
         SamePhysicalOrder(node.input(0)->type(), node.output()->type());
}

const ir::Value* StorageOf(const ir::Value* value) {
  while (value->producer() != nullptr && IsView(*value->producer())) {
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
