#pragma once

#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace fusor::passes {

// Appends the reverse-mode gradients of the scalar `loss`, times the scalar
// `scale` unless it is null, with respect to each value of `wrt`, which may be
// inputs or intermediate values, and returns them in that order: of the values'
// types, zeros where the loss does not depend on one. No node is left behind
// that none of them needs. Each appended node has the location of the forward
// node it belongs to. Throws kGraph when the loss is not a floating-point
// scalar or an op on the way cannot be differentiated.
std::vector<ir::Value*> BuildGradients(ir::Graph& graph, ir::Value* loss,
                                       std::span<ir::Value* const> wrt,
                                       ir::Value* scale = nullptr);

}  // namespace fusor::passes
