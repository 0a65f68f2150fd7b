#include "passes/library/conv_rewriter.h"

#include <algorithm>
#include <utility>

#include "ir/support/error.h"
#include "ir/target/conv_problem.h"
#include "ir/target/cost.h"
#include "passes/library/candidate.h"
#include "passes/passes.h"

namespace fusor::passes {
namespace {

using ir::Node;
using ir::OpKind;
using ir::Value;

constexpr char kFuseConvNormPass[] = "fuse_conv_norm";

}  // namespace

ExtendedConv ExtendConvolution(ir::Graph& graph, const PassContext& context,
                               const Node& conv, ir::LibraryFusion fusion,
                               Node* before, bool wanted) {
  Node* node = std::move(fusion).Build(graph, before);
  const std::string problem = ir::LibraryProblem(*node);
  const ir::DType dtype = conv.input(0)->type().dtype;
  const ir::AutotuneResults& choices = context.options().choices;
  const std::string* choice = choices.FindCandidate(problem, dtype);
  ExtendedConv extended;
  if (choice != nullptr && *choice == kDeclined) {
    extended = {
        .rejection = "rejected by autotune results " + choices.origin.file,
        .wanted = false};
  } else if (choice == nullptr && !wanted) {
    extended.wanted = false;
  } else {
    auto candidate = ChooseCandidate(*node, context);
    const bool automatic =
        context.options().norm_lowering == NormLowering::kAuto;
    if (choice == nullptr && automatic && candidate.has_value() &&
        candidate->algorithm == ir::kGeneratedAlgorithm) {
      candidate.reset();  // on request only
    }
    if (candidate.has_value() && FitsLayouts(*node, *candidate)) {
      ir::LibraryOp(*node).mutable_attrs().Set("algorithm",
                                               candidate->algorithm);
      return {.node = node};
    }
    const bool bias = ir::LibraryOp(*node).num_inputs() == 3;
    extended.rejection = (candidate.has_value() ? "only in other layouts: "
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

const std::string& AlgorithmOf(const Node& node) {
  return ir::LibraryOp(node).attrs().String("algorithm");
}

void Draft::Discard() {
  while (graph_.nodes().size() > nodes_) {
    graph_.Erase(graph_.nodes()[before_->position() - 1].get());
  }
}

ConvRewriter::ConvRewriter(ir::Graph& graph, PassContext& context,
                           NormLowering level, std::vector<ConvRewrite>* survey)
    : graph_(graph), context_(context), level_(level), survey_(survey) {}

bool ConvRewriter::is_automatic() const {
  return survey_ == nullptr &&
         context_.options().norm_lowering == NormLowering::kAuto;
}

bool ConvRewriter::MayBe(NormLowering level) const {
  return level_ >= level || ChooseExtensions(context_.options().choices);
}

std::vector<Node*> ConvRewriter::NodesOf(OpKind kind) const {
  std::vector<Node*> nodes;
  for (const auto& node : graph_.nodes()) {
    if (node->kind() == kind) nodes.push_back(node.get());
  }
  return nodes;
}

bool ConvRewriter::IsPrivate(const Value* value) const {
  return value->uses().size() == 1 && !graph_.IsOutput(value);
}

Node* ConvRewriter::DataGradient(const Value* value) const {
  Node* conv = value->producer();
  const bool plain = IsOp(conv, OpKind::kConv2dGradInput) && IsPrivate(value) &&
                     ir::IsPlainConvolution(*conv);
  return plain ? conv : nullptr;
}

bool ConvRewriter::ConsumeFuel(const Value& subject) {
  return context_.ConsumeFuel(kFuseConvNormPass, subject);
}

Node* ConvRewriter::Extend(const Node& conv, ir::LibraryFusion fusion,
                           Node* before, NormLowering level, bool wanted) {
  std::string plain = ir::LibraryProblem(conv);
  dtype_ = conv.input(0)->type().dtype;
  ExtendedConv extended =
      ExtendConvolution(graph_, context_, conv, std::move(fusion), before,
                        wanted && level_ >= level);
  wanted_ = extended.wanted;
  rejection_ = std::move(extended.rejection);
  if (extended.node != nullptr) {
    parts_.push_back({std::move(plain), ir::LibraryProblem(*extended.node)});
  }
  return extended.node;
}

void ConvRewriter::Record(Places& places, const Value& subject, bool accepted,
                          std::string reason, int64_t saved_bytes,
                          const Value* place) {
  std::vector<ConvRewrite::Part> parts = std::move(parts_);
  parts_.clear();
  if (!accepted && !wanted_ && rejection_.empty()) return;
  places.found += wanted_ ? 1 : 0;
  places.taken += accepted ? 1 : 0;
  if (!accepted) reason = rejection_;
  if (accepted && survey_ == nullptr) {
    const ir::AutotuneResults& choices = context_.options().choices;
    for (const ConvRewrite::Part& part : parts) {
      if (choices.FindCandidate(part.after, dtype_) != nullptr) {
        ++context_.counters()["chosen_forms"];
      }
    }
  }
  if (accepted && survey_ != nullptr) {
    survey_->push_back({(place != nullptr ? *place : subject).name(),
                        std::move(parts), dtype_, saved_bytes});
  }
  const ir::Target& target = context_.target().target();
  const int64_t saved = saved_bytes > 0 ? ir::KernelNs(saved_bytes, target) -
                                              target.launch_overhead_ns
                                        : 0;
  context_.Record({.pass = kFuseConvNormPass,
                   .subject = subject.name(),
                   .accepted = accepted,
                   .reason = std::move(reason),
                   .saved_ns = accepted ? saved : 0,
                   .location = ir::LocationOf(subject)});
}

void ConvRewriter::Replace(Value* old, Value* now) {
  names_.emplace_back(now, old->name());
  graph_.ReplaceAllUses(old, now);
}

void ConvRewriter::Finish(const std::vector<Node*>& old) {
  graph_.EraseAll(old);
  for (auto& [value, name] : names_) graph_.Rename(value, std::move(name));
  names_.clear();
  changed_ = true;
}

void ConvRewriter::Check(const Places& places, const char* what,
                         const char* counter) {
  context_.counters()[counter] += places.taken;
  FUSOR_CHECK(
      places.taken > 0 || places.found == 0 || survey_ != nullptr ||
          is_automatic(),
      kGraph,
      "bn-lowering {}: {} has no convolutions for this step with {}: {}",
      NormLoweringName(level_), context_.target().target().name, what,
      rejection_);
}

}  // namespace fusor::passes
