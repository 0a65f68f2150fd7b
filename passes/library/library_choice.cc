#include "passes/library/library_choice.h"

#include <algorithm>
#include <utility>

#include "ir/support/error.h"
#include "ir/support/str.h"
#include "ir/target/conv_problem.h"

namespace fusor::passes {

std::optional<ir::LibraryCandidate> ChooseCandidate(
    const ir::Node& node, const PassContext& context) {
  auto candidates = context.target().Candidates(node);
  const ir::AutotuneResults& choices = context.options().choices;
  if (!choices.empty()) {
    const std::string problem = ir::ConvolutionProblem(node);
    const std::string* choice =
        choices.FindCandidate(problem, node.input(0)->type().dtype);
    if (choice != nullptr && *choice != kSpaceToDepth && !candidates.empty()) {
      const auto named = std::find_if(
          candidates.begin(), candidates.end(),
          [&](const ir::LibraryCandidate& c) { return c.name == *choice; });
      FUSOR_CHECK(
          named != candidates.end(), kGraph,
          "autotune results {}: {} in {}: expected {}, got {}",
          choices.origin.file, problem, DTypeName(node.input(0)->type().dtype),
          Join(candidates, " or ", [](const auto& c) { return c.name; }),
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

}  // namespace fusor::passes
