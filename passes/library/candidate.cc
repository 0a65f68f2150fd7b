#include "passes/library/candidate.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ir/library_fusion.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "ir/support/str.h"
#include "ir/target/conv_problem.h"

namespace fusor::passes {
namespace {

// Returns "a or b", or "a or b or c or one of 40 more".
std::string Names(std::span<const ir::LibraryCandidate> candidates) {
  constexpr size_t kMost = 3;
  const size_t more = candidates.size() - std::min(candidates.size(), kMost);
  return Join(candidates.first(candidates.size() - more), " or ",
              [](const auto& c) { return c.name; }) +
         (more > 0 ? fmt::format(" or one of {} more", more) : "");
}

// Returns the name of the candidate that the autotune results choose for the
// node; null if they choose none.
const std::string* ChosenName(const ir::Node& node,
                              const PassContext& context) {
  const ir::AutotuneResults& choices = context.options().choices;
  if (choices.empty()) return nullptr;
  const std::string* name = choices.FindCandidate(ir::LibraryProblem(node),
                                                  node.input(0)->type().dtype);
  const bool is_form =
      name != nullptr && (*name == kSpaceToDepth || *name == kPadChannels);
  return is_form ? nullptr : name;
}

auto FindByName(std::vector<ir::LibraryCandidate>& candidates,
                const std::string& name) {
  return std::find_if(
      candidates.begin(), candidates.end(),
      [&](const ir::LibraryCandidate& c) { return c.name == name; });
}

}  // namespace

bool FitsLayouts(const ir::Node& node, const ir::LibraryCandidate& candidate) {
  for (size_t i = 0; i < node.num_inputs(); ++i) {
    if (node.input(i)->type().layout != candidate.operands[i]) return false;
  }
  for (size_t i = 0; i < node.num_outputs(); ++i) {
    if (node.output(i)->type().layout != candidate.results[i]) return false;
  }
  return true;
}

bool HasCandidate(const ir::Node& node, const PassContext& context) {
  auto candidates = context.target().Candidates(node);
  const std::string* name = ChosenName(node, context);
  return name == nullptr ? !candidates.empty()
                         : FindByName(candidates, *name) != candidates.end();
}

std::optional<ir::LibraryCandidate> ChooseCandidate(
    const ir::Node& node, const PassContext& context) {
  auto candidates = context.target().Candidates(node);
  const std::string* name = ChosenName(node, context);
  if (name != nullptr && !candidates.empty()) {
    const auto named = FindByName(candidates, *name);
    FUSOR_CHECK(named != candidates.end(), kGraph,
                "autotune results {}: {} in {}: expected {}, got {}",
                context.options().choices.origin.file, ir::LibraryProblem(node),
                DTypeName(node.input(0)->type().dtype), Names(candidates),
                *name);
    std::rotate(candidates.begin(), named, named + 1);
  }
  for (ir::LibraryCandidate& candidate : candidates) {
    if (candidate.algorithm == "winograd" && !context.options().winograd) {
      continue;
    }
    return std::move(candidate);
  }
  return std::nullopt;
}

// Excludes ops that combine many operand elements per result, which libraries
// run, except depthwise convolutions, and those for which the layout pass chose
// a generated kernel.
bool IsGenerated(const ir::Node& node, const ir::TargetQueries& target) {
  const bool fusion = ir::IsLibraryFusion(node);
  if (node.op().fusion != ir::FusionKind::kLibrary && !fusion) return false;
  const bool chooses =
      ir::ConvolutionOf(node).has_value() || node.kind() == ir::OpKind::kMatmul;
  if (chooses && ir::LibraryOp(node).attrs().String("algorithm") ==
                     ir::kGeneratedAlgorithm) {
    return true;
  }
  if (fusion) return false;
  if (node.op().macs != nullptr && !ir::IsDepthwise(node)) return false;
  const auto candidates = target.Candidates(node);
  return !candidates.empty() &&
         candidates[0].algorithm == ir::kGeneratedAlgorithm;
}

}  // namespace fusor::passes
