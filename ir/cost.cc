#include "ir/cost.h"

#include <algorithm>
#include <unordered_set>

#include "ir/op.h"

namespace fusor::ir {
namespace {

// Result elements of the convolution times the window, per group.
int64_t ConvMacs(const Shape& result, const Shape& weight) {
  return NumElements(result) * weight[1] * weight[2] * weight[3];
}

}  // namespace

int64_t NodeMacs(const Node& node) {
  const Attrs& attrs = node.attrs();
  if (attrs.Has("weight_shape")) {
    return ConvMacs(node.input(1)->type().shape, attrs.Ints("weight_shape"));
  }
  if (attrs.Has("groups")) {
    const Shape& weight = node.input(1)->type().shape;
    return attrs.Has("input_shape")
               ? ConvMacs(node.input(0)->type().shape, weight)
               : ConvMacs(node.output()->type().shape, weight);
  }
  if (attrs.Has("transpose_a")) {
    const Shape& a = node.input(0)->type().shape;
    const int64_t k = a[a.size() - (attrs.Bool("transpose_a") ? 2 : 1)];
    return node.output()->type().num_elements() * k;
  }
  return 0;
}

int64_t GraphMacs(const Graph& graph) {
  int64_t macs = 0;
  for (const auto& node : graph.nodes()) macs += NodeMacs(*node);
  return macs;
}

int64_t KernelBytes(const TensorType& type) {
  constexpr int64_t kBits = 8;
  return type.dtype == DType::kBool ? (type.num_elements() + kBits - 1) / kBits
                                    : type.num_bytes();
}

int64_t NodeBytes(const Node& node) {
  std::unordered_set<const Value*> values(node.inputs().begin(),
                                          node.inputs().end());
  for (size_t i = 0; i < node.num_outputs(); ++i) values.insert(node.output(i));
  int64_t bytes = 0;
  for (const Value* value : values) bytes += KernelBytes(value->type());
  return bytes;
}

int64_t KernelNs(int64_t bytes, const Target& target) {
  const double bandwidth = std::max(target.memory_gb_per_s, 1.0);
  return static_cast<int64_t>(static_cast<double>(bytes) / bandwidth) +
         target.launch_overhead_ns;
}

}  // namespace fusor::ir
