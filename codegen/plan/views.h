#pragma once

// Values that share a buffer: views, and state that is updated in place.

#include <span>
#include <string>
#include <unordered_map>

#include "codegen/lower/lower.h"
#include "ir/graph.h"

namespace fusor::codegen {

// Returns the value whose buffer stores `value`: itself, or the value that it
// is a view of.
const ir::Value* StorageOf(const ir::Value* value);

// Returns the elements of a `constant` node in physical layout.
std::string ConstantBytes(const ir::Node& constant);

// Returns the in-place aliases: value -> input whose buffer in the state arena
// its producer overwrites, if the nodes run in the order of `steps` (no views,
// no constants). A value aliases its input only if
//   - all readers of the old value run before the producer, or are the producer
//     itself and it may overwrite that operand;
//   - no output returns the old value;
//   - all results of its span alias their inputs.
// All other aliased outputs need a copy after the last step.
std::unordered_map<const ir::Value*, int> AliasState(
    const ir::Graph& graph, std::span<ir::Node* const> steps,
    const LoweredNodes& lowered);

}  // namespace fusor::codegen
