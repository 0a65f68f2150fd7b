#include "passes/patterns/norm_bias.h"

#include <algorithm>
#include <vector>

#include "ir/builder.h"

namespace fusor::passes {
namespace {

using ir::Node;
using ir::OpKind;
using ir::Use;
using ir::Value;

constexpr size_t kGradX = 1;     // operand of batch_norm_grad
constexpr size_t kGradMean = 4;  // the mean of that x

bool IsGradOf(const Use& use, const Value* mean) {
  return use.node->kind() == OpKind::kBatchNormGrad && use.operand == kGradX &&
         use.node->input(kGradMean) == mean;
}

}  // namespace

bool BiasMovesMean(const ir::Graph& graph, const Node& conv, const Node& norm) {
  if (conv.num_inputs() != 3 || conv.attrs().Bool("relu")) return false;
  const Value* y = conv.output();
  const Value* mean = norm.output(1);
  return norm.input(0) == y && !graph.IsOutput(y) &&
         std::all_of(y->uses().begin(), y->uses().end(), [&](const Use& use) {
           return use.node == &norm ? use.operand == 0 : IsGradOf(use, mean);
         });
}

void AddBiasToMean(ir::Graph& graph, Node* norm, Value* bias) {
  Value* mean = norm->output(1);
  std::vector<Use> uses;
  for (const Use& use : mean->uses()) {
    const bool grad =
        use.node->kind() == OpKind::kBatchNormGrad && use.operand == kGradMean;
    if (!grad) uses.push_back(use);
  }
  if (uses.empty() && !graph.IsOutput(mean)) return;
  const auto next = static_cast<size_t>(norm->position()) + 1;
  ir::Builder b(
      graph, next < graph.nodes().size() ? graph.nodes()[next].get() : nullptr);
  b.Inherit(norm->location());
  Value* moved = b.Plus(mean, b.Cast(bias, mean->type().dtype));
  for (const Use& use : uses) use.node->SetInput(use.operand, moved);
  for (ir::Output& output : graph.mutable_outputs()) {
    if (output.value == mean) output.value = moved;
  }
}

}  // namespace fusor::passes
