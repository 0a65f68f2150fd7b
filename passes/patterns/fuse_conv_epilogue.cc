// Fuses conv2d -> relu into conv2d with relu=true if the ReLU is the only
// reader. Runs after differentiation: the gradient of a ReLU reads the ReLU's
// result, so it does not need the convolution's.

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "ir/target/cost.h"
#include "passes/library/candidate.h"
#include "passes/passes.h"

namespace fusor::passes {
namespace {

using ir::Node;
using ir::OpKind;
using ir::Value;

constexpr char kPass[] = "fuse_conv_epilogue";

// Returns true if the library applies the ReLU at no cost: the candidate chosen
// without ReLU has a twin, of equal algorithm and implementation, with ReLU.
bool HasEpilogue(Node& conv, const PassContext& context) {
  const auto plain = ChooseCandidate(conv, context);
  if (!plain.has_value()) return false;
  conv.mutable_attrs().Set("relu", true);
  const auto fused = context.target().Candidates(conv);
  conv.mutable_attrs().Set("relu", false);
  return std::any_of(fused.begin(), fused.end(),
                     [&](const ir::LibraryCandidate& twin) {
                       return twin.algorithm == plain->algorithm &&
                              twin.implementation == plain->implementation;
                     });
}

// Returns the rejection reason; empty if the convolution can apply its ReLU.
std::string Obstacle(Node& conv,
                     const std::unordered_set<const Value*>& outputs,
                     const PassContext& context) {
  const Value& value = *conv.output();
  if (value.uses().size() > 1 || outputs.contains(&value)) {
    return value.name() + " has other uses";
  }
  if (!HasEpilogue(conv, context)) {
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
    if (relu->kind() != OpKind::kRelu) continue;
    Value* value = relu->input(0);
    Node* conv = value->producer();
    if (!IsOp(conv, OpKind::kConv2d) || conv->attrs().Bool("relu")) continue;
    std::string obstacle = Obstacle(*conv, outputs, context);
    const bool fuse =
        obstacle.empty() && context.ConsumeFuel(kPass, *relu->output());
    context.Record({.pass = kPass,
                    .subject = relu->output()->name(),
                    .accepted = fuse,
                    .reason = fuse ? "only consumer of the convolution"
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
