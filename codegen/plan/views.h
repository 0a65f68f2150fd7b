#pragma once

#include <string>

#include "ir/graph.h"

namespace fusor::codegen {

// The node's result is its operand's bytes under another type - a reshape of
// row-major elements, a copy between two names of one physical order - so that
// it needs neither a step nor a buffer.
bool IsView(const ir::Node& node);

// The value whose buffer holds `value`: itself, or what it is a view of.
const ir::Value* StorageOf(const ir::Value* value);

// The elements of a `constant` node as they lie in memory.
std::string ConstantBytes(const ir::Node& constant);

}  // namespace fusor::codegen
