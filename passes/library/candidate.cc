#include "passes/library/candidate.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

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

}  // namespace

std::optional<ir::LibraryCandidate> ChooseCandidate(
    const ir::Node& node, const PassContext& context) {
  auto candidates = context.target().Candidates(node);
  const ir::AutotuneResults& choices = context.options().choices;
  if (!choices.empty()) {
    const std::string problem = ir::ConvolutionProblem(node);
    const std::string* choice =
        choices.FindCandidate(problem, node.input(0)->type().dtype);
    if (choice != nullptr && *choice != kSpaceToDepth &&
        *choice != kPadChannels && !candidates.empty()) {
      const auto named = std::find_if(
          candidates.begin(), candidates.end(),
          [&](const ir::LibraryCandidate& c) { return c.name == *choice; });
      FUSOR_CHECK(named != candidates.end(), kGraph,
                  "autotune results {}: {} in {}: expected {}, got {}",
                  choices.origin.file, problem,
                  DTypeName(node.input(0)->type().dtype), Names(candidates),
                  *choice);
      std::rotate(candidates.begin(), named, named + 1);
    }
  }
  for (ir::LibraryCandidate& candidate : candidates) {
    if (candidate.algorithm == "winograd" && !context.options().winograd) {
      continue;
    }
    return std::move(candidate);
  }
  return std::nullopt;
}

// Excludes ops that combine many operand elements per result, except depthwise
// convolutions: libraries run those.
bool IsGenerated(const ir::Node& node, const ir::TargetQueries& target) {
  if (node.op().fusion != ir::FusionKind::kLibrary ||
      (node.op().macs != nullptr && !ir::IsDepthwise(node))) {
    return false;
  }
  const auto candidates = target.Candidates(node);
  return !candidates.empty() &&
         candidates[0].algorithm == ir::kGeneratedAlgorithm;
}

}  // namespace fusor::passes
