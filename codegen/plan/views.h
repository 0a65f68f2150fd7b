#pragma once

#include <string>

#include "ir/graph.h"

namespace fusor::codegen {

// Returns whether the node only reinterprets its operand's bytes as another
// type, so that it needs neither a step nor a buffer. Examples are a reshape of
// a row-major tensor and a copy between layouts of the same physical order.
bool IsView(const ir::Node& node);

// Returns the value whose buffer stores `value`: itself, or the value that it
// is a view of.
const ir::Value* StorageOf(const ir::Value* value);

// Returns the elements of a `constant` node in physical layout.
std::string ConstantBytes(const ir::Node& constant);

}  // namespace fusor::codegen
