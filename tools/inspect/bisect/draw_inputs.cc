#include "tools/inspect/bisect/draw_inputs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "ir/support/hash.h"
#include "ir/support/philox.h"
#include "ir/weight_copy.h"

namespace fusor::inspect {
namespace {

// Returns a map from a uniform number in [0, 1) to a value of the input.
std::function<double(double)> Distribution(const ir::Input& input) {
  const ir::DType dtype = input.value->type().dtype;
  if (dtype == ir::DType::kBool)
    return [](double u) { return u < 0.5 ? 0.0 : 1.0; };
  if (dtype == ir::DType::kU8)
    return [](double u) { return std::floor(256 * u); };
  if (!ir::IsFloat(dtype)) return [](double u) { return std::floor(4 * u); };
  if (input.role == ir::InputRole::kHyperParameter) {
    return [](double u) { return 0.05 + 0.1 * u; };
  }
  const ir::Attrs& attrs = input.attrs;
  if (attrs.Has("init") && attrs.String("init") == "constant") {
    const double start = attrs.Float("value");
    return [start](double u) { return start + 0.1 * u; };
  }
  const double bound = attrs.Has("std")     ? std::sqrt(3) * attrs.Float("std")
                       : attrs.Has("bound") ? attrs.Float("bound")
                                            : std::sqrt(3);
  return [bound](double u) { return bound * (2 * u - 1); };
}

// Returns the max_pool_grad or max_pool_gather that takes its positions from
// `value`, perhaps within a fusion; null if there is none.
const ir::Node* ReaderOfPositions(const ir::Value& value) {
  for (const ir::Use& use : value.uses()) {
    const ir::Node* node = use.node;
    if (node->body() != nullptr) {
      const ir::Node* inner =
          ReaderOfPositions(*node->body()->input(use.operand));
      if (inner != nullptr) return inner;
    }
    if (use.operand == 1 && (node->kind() == ir::OpKind::kMaxPoolGrad ||
                             node->kind() == ir::OpKind::kMaxPoolGather)) {
      return node;
    }
  }
  return nullptr;
}

}  // namespace

std::optional<ir::Tensor> DrawPositions(const ir::Value& value, uint64_t key) {
  const ir::Node* reader = ReaderOfPositions(value);
  if (reader == nullptr) return std::nullopt;
  ir::Graph graph("positions");
  const ir::Attrs& attrs = reader->attrs();
  const ir::Shape& image = reader->kind() == ir::OpKind::kMaxPoolGrad
                               ? attrs.Ints("input_shape")
                               : reader->input(0)->type().shape;
  ir::Value* x =
      graph.AddInput({ir::DType::kF32, image, {}}, ir::InputRole::kData, "x");
  ir::Node* pool = graph.AddNode("max_pool", {x},
                                 {{"window", attrs.Ints("window")},
                                  {"stride", attrs.Ints("stride")},
                                  {"pad", attrs.Ints("pad")}});
  graph.AddOutput(pool->output(1), "positions");
  ir::Tensor drawn{x->type(), {}};
  for (int64_t i = 0; i < x->type().num_elements(); ++i) {
    drawn.data.push_back(RandomUniform(key, 0, 0, 0, i));
  }
  const std::vector<ir::Tensor> images = {std::move(drawn)};
  ir::Tensor positions =
      ir::Interpret(graph, images, ir::EvalMode::kExact).at(0);
  positions.type = value.type();
  return positions;
}

ir::Tensor DrawInput(const ir::Input& input, uint64_t seed) {
  if (auto positions =
          DrawPositions(*input.value, seed ^ HashBytes(input.value->name()))) {
    return *std::move(positions);
  }
  ir::Tensor tensor{input.value->type(), {}};
  const auto elements = static_cast<size_t>(tensor.type.num_elements());
  const auto distribution = Distribution(input);
  const uint64_t stream = HashBytes(input.value->name());
  const auto low = static_cast<uint32_t>(stream);
  const auto high = static_cast<uint32_t>(stream >> 32);
  tensor.data.reserve(elements);
  std::array<uint32_t, 4> block{};
  for (size_t i = 0; i < elements; ++i) {
    if (i % 4 == 0) {
      block = Philox({static_cast<uint32_t>(i / 4), low, high, 0}, seed);
    }
    const double u = UniformFloat(block[i % 4]);
    tensor.data.push_back(ir::RoundTo(tensor.type.dtype, distribution(u)));
  }
  return tensor;
}

std::vector<ir::Tensor> DrawInputs(const ir::Graph& graph, uint64_t seed) {
  std::vector<ir::Tensor> inputs;
  for (const ir::Input& input : graph.inputs()) {
    inputs.push_back(DrawInput(input, seed));
  }
  DeriveWeightCopies(graph, ir::EvalMode::kTyped, inputs);
  return inputs;
}

void DeriveWeightCopies(const ir::Graph& graph, ir::EvalMode mode,
                        std::vector<ir::Tensor>& inputs) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    const ir::Input& input = graph.inputs()[i];
    if (input.role != ir::InputRole::kWeightCopy) continue;
    const ir::Value* weight = graph.FindInput(ir::CopiedWeight(input.attrs));
    if (weight == nullptr) continue;
    inputs[i].data = inputs[weight->index()].data;
    if (mode == ir::EvalMode::kExact) continue;
    for (double& x : inputs[i].data)
      x = ir::RoundTo(ir::CopyRounding(input.attrs), x);
  }
}

}  // namespace fusor::inspect
