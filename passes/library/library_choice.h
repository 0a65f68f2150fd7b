#pragma once

#include <optional>

#include "ir/target/target.h"
#include "passes/passes.h"

namespace fusor::passes {

// What choices name instead of a candidate where SpaceToDepth is to replace the
// convolution. Of one that is still there they say nothing.
inline constexpr char kSpaceToDepth[] = "space_to_depth";

// The candidate that a node is to run as: the one that PassOptions::choices
// names for its problem and dtype, else the target's best, in both cases
// without Winograd where the options do not allow it. nullopt when there is
// none. Throws kGraph when the named one is none of the target's.
std::optional<ir::LibraryCandidate> ChooseCandidate(const ir::Node& node,
                                                    const PassContext& context);

}  // namespace fusor::passes
