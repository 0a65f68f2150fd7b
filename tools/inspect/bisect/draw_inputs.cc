#include "tools/inspect/bisect/draw_inputs.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "ir/support/hash.h"
#include "ir/support/philox.h"
#include "ir/weight_copy.h"

namespace fusor::ir {
namespace {

// Returns a map from a uniform number in [0, 1) to a value of the input.
std::function<double(double)> Distribution(const Input& input) {
  const DType dtype = input.value->type().dtype;
  if (dtype == DType::kBool)
    return [](double u) { return u < 0.5 ? 0.0 : 1.0; };
  if (dtype == DType::kU8) return [](double u) { return std::floor(256 * u); };
  if (!IsFloat(dtype)) return [](double u) { return std::floor(4 * u); };
  if (input.role == InputRole::kHyperParameter) {
    return [](double u) { return 0.05 + 0.1 * u; };
  }
  const Attrs& attrs = input.attrs;
  if (attrs.Has("init") && attrs.String("init") == "constant") {
    const double start = attrs.Float("value");
    return [start](double u) { return start + 0.1 * u; };
  }
  const double bound = attrs.Has("std")     ? std::sqrt(3) * attrs.Float("std")
                       : attrs.Has("bound") ? attrs.Float("bound")
                                            : std::sqrt(3);
  return [bound](double u) { return bound * (2 * u - 1); };
}

}  // namespace

std::optional<Tensor> DrawPositions(const Value& value, uint64_t key) {
  const auto read = std::find_if(
      value.uses().begin(), value.uses().end(), [](const Use& use) {
        return use.operand == 1 && (use.node->kind() == OpKind::kMaxPoolGrad ||
                                    use.node->kind() == OpKind::kMaxPoolGather);
      });
  if (read == value.uses().end()) return std::nullopt;
  Graph graph("positions");
  const Attrs& attrs = read->node->attrs();
  const Shape& image = read->node->kind() == OpKind::kMaxPoolGrad
                           ? attrs.Ints("input_shape")
                           : read->node->input(0)->type().shape;
  Value* x = graph.AddInput({DType::kF32, image, {}}, InputRole::kData, "x");
  Node* pool = graph.AddNode("max_pool", {x},
                             {{"window", attrs.Ints("window")},
                              {"stride", attrs.Ints("stride")},
                              {"pad", attrs.Ints("pad")}});
  graph.AddOutput(pool->output(1), "positions");
  Tensor drawn{x->type(), {}};
  for (int64_t i = 0; i < x->type().num_elements(); ++i) {
    drawn.data.push_back(RandomUniform(key, 0, 0, 0, i));
  }
  const std::vector<Tensor> images = {std::move(drawn)};
  Tensor positions = Interpret(graph, images, EvalMode::kExact).at(0);
  positions.type = value.type();
  return positions;
}

Tensor DrawInput(const Input& input, uint64_t seed) {
  if (auto positions =
          DrawPositions(*input.value, seed ^ HashBytes(input.value->name()))) {
    return *std::move(positions);
  }
  Tensor tensor{input.value->type(), {}};
  const auto elements = static_cast<size_t>(tensor.type.num_elements());
  const auto distribution = Distribution(input);
  const uint64_t stream = HashBytes(input.value->name());
  const auto low = static_cast<uint32_t>(stream);
  const auto high = static_cast<uint32_t>(stream >> 32);
  tensor.data.reserve(elements);
  for (size_t i = 0; i < elements; ++i) {
    const double u = RandomUniform(seed, low, high, 0, i);
    tensor.data.push_back(RoundTo(tensor.type.dtype, distribution(u)));
  }
  return tensor;
}

std::vector<Tensor> DrawInputs(const Graph& graph, uint64_t seed) {
  std::vector<Tensor> inputs;
  for (const Input& input : graph.inputs()) {
    inputs.push_back(DrawInput(input, seed));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Input& input = graph.inputs()[i];
    if (input.role != InputRole::kWeightCopy) continue;
    const Value* weight = graph.FindInput(CopiedWeight(input.attrs));
    inputs[i].data = inputs[weight->index()].data;
    for (double& x : inputs[i].data) x = RoundTo(CopyRounding(input.attrs), x);
  }
  return inputs;
}

}  // namespace fusor::ir
