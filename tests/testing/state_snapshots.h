#pragma once

#include <cstdint>

#include "runtime/checkpoint/checkpoint.h"

namespace fusor::test {

// Returns state of several dtypes and layouts without a session: parameters of
// `elements` elements, a counter and 16-bit state. The seed determines its
// values.
runtime::StateSnapshot MakeState(uint64_t seed, int64_t elements = 512);

// Returns a header whose fields are all derived from `step`.
runtime::CheckpointHeader MakeHeader(int64_t step);

}  // namespace fusor::test
