// conv2d -> relu becomes conv2d with relu=true where the ReLU is the only
// reader. After differentiation: the gradient of a ReLU reads its result, so
// the convolution's own result is not needed there.

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "ir/cost.h"
#include "passes/passes.h"
#include "passes/pattern.h"

namespace fusor::passes {
namespace {

using ir::Node;
using ir::Value;

constexpr char kPass[] = "fuse_conv_epilogue";

// True when the library can apply the ReLU at no cost: whatever it has for the
// convolution alone it has, by the same kernel, with the ReLU.
bool HasEpilogue(Node& conv, const ir::TargetQueries& target) {
  const auto plain = target.Candidates(conv);
  conv.mutable_attrs().Set("relu", true);
  const auto fused = target.Candidates(conv);
  conv.mutable_attrs().Set("relu", false);
  const auto has_twin = [&](const ir::LibraryCandidate& candidate) {
    return std::any_of(fused.begin(), fused.end(),
                       [&](const ir::LibraryCandidate& twin) {
                         return twin.algorithm == candidate.algorithm &&
                                twin.implementation == candidate.implementation;
                       });
  };
  return !plain.empty() && std::all_of(plain.begin(), plain.end(), has_twin);
}

// Why the ReLU cannot join the convolution that it reads; empty when it can.
std::string Obstacle(Node& conv,
                     const std::unordered_set<const Value*>& outputs,
                     const ir::TargetQueries& target) {
  const Value& value = *conv.output();
  if (value.uses().size() > 1 || outputs.contains(&value)) {
    return value.name() + " has other uses";
  }
  if (!HasEpilogue(conv, target)) {
    return "the library has no such convolution with a ReLU";
  }
  return "";
}

}  // namespace

bool FuseConvEpilogue(ir::Graph& graph, PassContext& context) {
  std::unordered_set<const Value*> outputs;
  for (const ir::Output& output : graph.outputs()) outputs.insert(output.value);
  int64_t& count = context.counters()["conv_relu"];
  std::vector<Node*> dead;
  std::vector<std::pair<Value*, std::string>> names;
  for (const auto& relu : graph.nodes()) {
    if (!IsOp(relu.get(), "relu")) continue;
    Value* value = relu->input(0);
    Node* conv = value->producer();
    if (!IsOp(conv, "conv2d") || conv->attrs().Bool("relu")) continue;
    std::string obstacle = Obstacle(*conv, outputs, context.target());
    const bool fuse =
        obstacle.empty() && context.ConsumeFuel(kPass, *relu->output());
    context.Record({.pass = kPass,
                    .subject = relu->output()->name(),
                    .accepted = fuse,
                    .reason = fuse ? "only reader of the convolution"
                              : obstacle.empty() ? "out of fuel"
                                                 : std::move(obstacle),
                    .saved_ns = fuse ? ir::KernelNs(ir::NodeBytes(*relu),
                                                    context.target().target())
                                     : 0,
                    .location = relu->location()});
    if (!fuse) continue;
    conv->mutable_attrs().Set("relu", true);
    graph.ReplaceAllUses(relu->output(), value);
    names.emplace_back(value, relu->output()->name());
    dead.push_back(relu.get());
    ++count;
  }
  graph.EraseAll(dead);
  for (auto& [value, name] : names) graph.Rename(value, std::move(name));
  return !dead.empty();
}

}  // namespace fusor::passes
