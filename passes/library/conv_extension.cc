#include "passes/library/conv_extension.h"

#include <algorithm>
#include <utility>

#include "ir/target/conv_problem.h"
#include "passes/library/candidate.h"

namespace fusor::passes {
namespace {

using ir::Node;
using ir::OpKind;

bool FitsLayouts(const Node& node, const Node& old,
                 const ir::LibraryCandidate& candidate) {
  for (size_t i = 0; i < node.num_inputs(); ++i) {
    if (node.input(i)->type().layout != candidate.operands[i]) return false;
  }
  for (size_t i = 1; i < node.num_outputs(); ++i) {
    const bool stored =
        node.output(i)->type().rank() == 4;  // the input it stores
    if (stored && candidate.results[i] != node.input(0)->type().layout) {
      return false;
    }
  }
  return candidate.results[0] == old.output()->type().layout;
}

void Take(Node& node, const ir::LibraryCandidate& candidate) {
  node.mutable_attrs().Set("algorithm", candidate.algorithm);
  for (size_t i = 0; i < node.num_outputs(); ++i) {
    ir::TensorType type = node.output(i)->type();
    type.layout = candidate.results[i];
    node.output(i)->set_type(type);
  }
}

}  // namespace

ExtendedConv ExtendConvolution(ir::Graph& graph, const PassContext& context,
                               const ConvExtension& extension, Node* before,
                               bool wanted) {
  const Node& old = *extension.conv;
  ir::Attrs attrs = extension.attrs;
  attrs.Set("algorithm", std::string());
  Node* node = graph.AddNode(old.kind(), extension.operands, attrs,
                             old.location(), before);
  const std::string problem = ir::ConvolutionProblem(*node);
  const ir::DType dtype = old.input(0)->type().dtype;
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
    if (candidate.has_value() && FitsLayouts(*node, old, *candidate)) {
      Take(*node, *candidate);
      return {.node = node};
    }
    const bool bias = IsOp(node, OpKind::kConv2d) && node->num_inputs() == 3;
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
                       return problem.find(" statistics") !=
                                  std::string::npos ||
                              problem.find(" norm=") != std::string::npos ||
                              problem.find(" prologue=") != std::string::npos ||
                              problem.find(" accumulate") != std::string::npos;
                     });
}

}  // namespace fusor::passes
