#include "ir/target/cost.h"

#include <algorithm>
#include <unordered_set>

#include "ir/op.h"

namespace fusor::ir {

int64_t NodeMacs(const Node& node) {
  if (node.body() != nullptr) return GraphMacs(*node.body());
  return node.op().macs == nullptr ? 0 : node.op().macs(node);
}

int64_t GraphMacs(const Graph& graph) {
  int64_t macs = 0;
  for (const auto& node : graph.nodes()) macs += NodeMacs(*node);
  return macs;
}

int64_t KernelBytes(const TensorType& type) {
  return type.dtype == DType::kBool ? PackedBytes(type.num_elements())
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
