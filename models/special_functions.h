#pragma once

// Special functions of real numbers as functions of Builder's ops. Tensors are
// floats of 32 or 64 bits.

#include "ir/builder.h"

namespace fusor::models {

// Returns log |gamma(x)|.
ir::Value* LogGamma(ir::Builder& b, ir::Value* x);
// Returns the derivative of log |gamma(x)|.
ir::Value* Digamma(ir::Builder& b, ir::Value* x);
// Returns the y with erf(y) = x: infinite for -1 and 1, NaN beyond them.
ir::Value* InverseErf(ir::Builder& b, ir::Value* x);

}  // namespace fusor::models
