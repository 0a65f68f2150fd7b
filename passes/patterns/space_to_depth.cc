// Chooses the form of a convolution over images of few channels, such as the
// first one of a ResNet. GPUs load 16 bytes at once, but a pixel of three
// 16-bit channels has 6.
//
// pad_channels: zero channels fill a pixel to 4 or 8 channels.
//
// space_to_depth: a 7x7 convolution of stride 2 on three channels becomes a 4x4
// convolution of stride 1 on twelve channels, padded to sixteen, that are the
// pixels of 2x2 blocks. Block p has rows 2 (p - 1) and 2 (p - 1) + 1 of the
// image; block 0 is zero. For a convolution with padding `pad`, row r of the
// window at i is
//
//   2 i - pad + r = 2 (p - 1) + a,   p = i - pad' + P
//   r = 2 P + a - shift,             shift = 2 pad' + 2 - pad, 0 or 1
//
// where P is one of the K' = ceil((K + shift) / 2) rows of the new window. The
// new weight is the old one with `shift` zeros before it and zeros after it;
// its gradient is cropped. The same applies to columns. The products are the
// same, but they are added up in another order.
//
// Normalising the images, the layout change and the rearranging are one kernel.

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ir/op.h"
#include "ir/target/conv_problem.h"
#include "ir/target/cost.h"
#include "passes/library/candidate.h"
#include "passes/patterns/conv_rewrites.h"
#include "passes/patterns/image_forms.h"

namespace fusor::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::OpKind;

constexpr char kSpaceToDepthPass[] = "space_to_depth";

// Padded channels: of 8 bytes, and of 16, in 16 bit.
constexpr std::array kPaddedForms = {ImageForm{1, 4}, ImageForm{1, 8}};

std::vector<Node*> PlainConvolutions(const Graph& graph) {
  std::vector<Node*> convs;
  for (const auto& node : graph.nodes()) {
    if (node->kind() == OpKind::kConv2d && ir::IsPlainConvolution(*node)) {
      convs.push_back(node.get());
    }
  }
  return convs;
}

bool IsNormalised(const Node& conv) {
  return std::any_of(conv.output()->uses().begin(), conv.output()->uses().end(),
                     [](const ir::Use& use) {
                       return use.node->kind() == OpKind::kBatchNormTrain &&
                              (use.operand == 0 || use.operand == 3);
                     });
}

const std::string* ChoiceFor(const Node& conv, const PassContext& context) {
  return context.options().choices.FindCandidate(ir::LibraryProblem(conv),
                                                 conv.input(0)->type().dtype);
}

// Returns the rewrite to another form, or nullopt and the reason. Pixel blocks
// take precedence over padded channels, which move more bytes and have more
// multiplications. The number of padded channels is the one that is estimated
// faster.
std::optional<ImageRewrite> FindForm(Graph& graph, Node& conv,
                                     const NormalizedImages& images,
                                     const PassContext& context,
                                     std::string& reason) {
  ImageRewrite blocks(graph, conv, images, kPixelBlocks);
  reason = blocks.WhyNot();
  if (reason.empty()) return blocks;
  std::optional<ImageRewrite> best;
  double best_ns = 0;
  for (const ImageForm& form : kPaddedForms) {
    ImageRewrite padded(graph, conv, images, form);
    if (!padded.WhyNot().empty()) {
      reason = padded.WhyNot();
      continue;
    }
    if (best.has_value() &&
        padded.LeastNs(context.target().target()) >= best_ns) {
      continue;
    }
    const double ns = padded.CostNs(context, true);
    if (best.has_value() && ns >= best_ns) continue;
    best.emplace(padded);
    best_ns = ns;
  }
  return best;
}

struct FormDecision {
  bool taken = false;
  std::string reason;
  double saved_ns = 0;
};

// Decides by choices; otherwise by the statistics that the library can compute
// only in the new form; otherwise by the estimate.
FormDecision Decide(const Node& conv, const ImageRewrite& rewrite,
                    const char* name, const PassContext& context) {
  const PassOptions& options = context.options();
  const ir::Target& target = context.target().target();
  const std::string* choice = ChoiceFor(conv, context);
  if (choice != nullptr) {
    return {*choice == name,
            "by autotune results " + options.choices.origin.file};
  }
  const double now = rewrite.CostNs(context, false);
  if (options.fusion && options.norm_lowering >= NormLowering::kStatistics &&
      IsNormalised(conv) && !rewrite.HasStatistics(context.target(), false) &&
      rewrite.HasStatistics(context.target(), true)) {
    const auto statistics = static_cast<double>(
        ir::KernelNs(conv.output()->type().num_bytes(), target));
    return {true, "the library computes statistics only of this form",
            now + statistics - rewrite.CostNs(context, true)};
  }
  if (rewrite.LeastNs(target) >= now) {
    return {false, "no other form is estimated faster"};
  }
  const double then = rewrite.CostNs(context, true);
  if (then >= now) return {false, "no other form is estimated faster"};
  return {true, "estimated faster", now - then};
}

}  // namespace

bool SpaceToDepth(Graph& graph, PassContext& context) {
  const ir::Target& target = context.target().target();
  if (!target.simt) return false;
  bool changed = false;
  for (Node* conv : PlainConvolutions(graph)) {
    const auto images = FindImages(conv->input(0));
    if (!images.has_value()) continue;
    FormDecision decision;
    auto rewrite = FindForm(graph, *conv, *images, context, decision.reason);
    if (rewrite.has_value()) {
      decision = Decide(*conv, *rewrite, rewrite->choice(), context);
    }
    if (decision.taken &&
        !context.ConsumeFuel(kSpaceToDepthPass, *conv->output()))
      break;
    context.Record(
        {.pass = kSpaceToDepthPass,
         .subject = conv->output()->name(),
         .accepted = decision.taken,
         .reason = std::move(decision.reason),
         .saved_ns = static_cast<int64_t>(
             std::isfinite(decision.saved_ns) ? decision.saved_ns : 0),
         .location = conv->location()});
    if (!decision.taken) continue;
    ++context.counters()[rewrite->choice()];
    if (ChoiceFor(*conv, context) != nullptr) {
      ++context.counters()["chosen_forms"];
    }
    rewrite->Apply();
    changed = true;
  }
  return changed;
}

std::vector<ConvRewrite> SurveySpaceToDepth(Graph& graph,
                                            const PassContext& context) {
  std::vector<ConvRewrite> made;
  if (!context.target().target().simt) return made;
  for (Node* conv : PlainConvolutions(graph)) {
    const auto images = FindImages(conv->input(0));
    if (!images.has_value()) continue;
    std::string reason;
    auto rewrite = FindForm(graph, *conv, *images, context, reason);
    if (rewrite.has_value()) made.push_back(rewrite->Apply());
  }
  return made;
}

}  // namespace fusor::passes
