#pragma once

// Values without a step of their own: views and constants.

#include <string>

#include "ir/graph.h"

namespace fusor::codegen {

// Returns the value whose buffer stores `value`: itself, or the value that it
// is a view of.
const ir::Value* StorageOf(const ir::Value* value);
ir::Value* StorageOf(ir::Value* value);

// Returns the elements of a `constant` node in physical layout.
std::string ConstantBytes(const ir::Node& constant);

}  // namespace fusor::codegen
