#include "passes/library/conv_extension.h"

#include <algorithm>
#include <utility>

#include "ir/target/conv_problem.h"
#include "passes/library/candidate.h"

namespace fusor::passes {
namespace {

using ir::Node;

bool FitsLayouts(const Node& node, const ir::LibraryCandidate& candidate) {
  for (size_t i = 0; i < node.num_inputs(); ++i) {
    if (node.input(i)->type().layout != candidate.operands[i]) return false;
  }
  for (size_t i = 0; i < node.num_outputs(); ++i) {
    if (node.output(i)->type().layout != candidate.results[i]) return false;
  }
  return true;
}

}  // namespace

ExtendedConv ExtendConvolution(ir::Graph& graph, const PassContext& context,
                               const Node& conv, ir::LibraryFusion fusion,
                               Node* before, bool wanted) {
  Node* node = std::move(fusion).Build(graph, before);
  const std::string problem = ir::ConvolutionProblem(*node);
  const ir::DType dtype = conv.input(0)->type().dtype;
  const ir::AutotuneResults& choices = context.options().choices;
  const std::string* choice = choices.FindCandidate(problem, dtype);
  ExtendedConv extended;
  if (choice != nullptr && *choice == kDeclined) {
    extended = {
        .refusal = "rejected by autotune results " + choices.origin.file,
        .wanted = false};
  } else if (choice == nullptr && !wanted) {
    extended.wanted = false;
  } else {
    const auto candidate = ChooseCandidate(*node, context);
    if (candidate.has_value() && FitsLayouts(*node, *candidate)) {
      ir::LibraryOp(*node).mutable_attrs().Set("algorithm",
                                               candidate->algorithm);
      return {.node = node};
    }
    const bool bias = ir::LibraryOp(*node).num_inputs() == 3;
    extended.refusal = (candidate.has_value() ? "only in other layouts: "
                                              : "the library has no ") +
                       problem + (bias ? " with a bias" : "") + " in " +
                       std::string(DTypeName(dtype));
  }
  graph.Erase(node);
  return extended;
}

bool ChooseExtensions(const ir::AutotuneResults& choices) {
  return std::any_of(choices.candidates.begin(), choices.candidates.end(),
                     [](const auto& choice) {
                       const std::string& problem = choice.first.first;
                       return problem.find(" fused=") != std::string::npos;
                     });
}

}  // namespace fusor::passes
