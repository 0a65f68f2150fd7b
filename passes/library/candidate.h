#pragma once

#include <optional>

#include "ir/target/target.h"
#include "passes/passes.h"

namespace fusor::passes {

// Choices (PassOptions::choices) that request a form of SpaceToDepth instead of
// naming a candidate. Ignored for a convolution that SpaceToDepth has not
// replaced.
inline constexpr char kSpaceToDepth[] = "space_to_depth";
inline constexpr char kPadChannels[] = "pad_channels";

// Returns true if the candidate has the layouts of the node's operands and
// results.
bool FitsLayouts(const ir::Node& node, const ir::LibraryCandidate& candidate);

// Returns true if the target has a candidate for the node. If
// PassOptions::choices name one for its problem and dtype: if it has that one.
bool HasCandidate(const ir::Node& node, const PassContext& context);

// Returns the candidate to run a node with: the one that PassOptions::choices
// names for its problem and dtype, otherwise the target's best. Skips Winograd
// if the options forbid it. Returns nullopt if there is none. Throws kGraph if
// the target does not have the named candidate.
std::optional<ir::LibraryCandidate> ChooseCandidate(const ir::Node& node,
                                                    const PassContext& context);

// Returns true for a library op that the target leaves to a generated kernel
// (ir::kGeneratedAlgorithm): pooling, layout copies, and those convolutions,
// library fusions of them and matmuls for which ChooseCandidate returned one.
bool IsGenerated(const ir::Node& node, const ir::TargetQueries& target);

}  // namespace fusor::passes
