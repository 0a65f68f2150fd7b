#pragma once

#include "tests/testing/random_values.h"

namespace fusor::test {

// Appends one op of the classes kLibrary, kMisc and kNoGradient that the pool's
// options allow, on x or on a value derived from x, with its other operands.
// Appends none if x does not fit.
void AddLibraryOp(ValuePool& pool, ir::Value* x);

}  // namespace fusor::test
