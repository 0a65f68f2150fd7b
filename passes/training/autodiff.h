#pragma once

#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace fusor::passes {

// Appends the reverse-mode gradients of the scalar `loss`, times the scalar
// `scale` unless it is null, with respect to each value of `wrt` (inputs or
// intermediate values). Returns them in that order and with the types of the
// values; zeros if the loss does not depend on a value. Erases appended nodes
// that none of them needs. Each appended node has the location of its forward
// node. Throws kGraph if the loss is not a floating-point scalar or an op on
// the path has no gradient.
std::vector<ir::Value*> BuildGradients(ir::Graph& graph, ir::Value* loss,
                                       std::span<ir::Value* const> wrt,
                                       ir::Value* scale = nullptr);

}  // namespace fusor::passes
