#pragma once

#include <span>
#include <unordered_map>

#include "codegen/lower/lowered_kernel.h"
#include "ir/graph.h"

namespace fusor::codegen {

// Value -> input whose place in the state arena its producer writes, when the
// nodes run in the order of `steps` (no views, no constants). A value gets its
// input's place only if all readers of the old value have run by then, or are
// the producer itself and it may write over what it reads; no output needs the
// old value; and the results of one span all get theirs. All other aliased
// outputs need a copy after the last step.
std::unordered_map<const ir::Value*, int> AliasState(
    const ir::Graph& graph, std::span<ir::Node* const> steps,
    const LoweredNodes& lowered);

}  // namespace fusor::codegen
