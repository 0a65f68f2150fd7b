#pragma once

#include <cstdint>

#include "runtime/checkpoint/checkpoint.h"

namespace fusor::test {

// A state of several dtypes and layouts without a session: parameters of
// `elements` elements, a counter, 16-bit state. Its values come from the seed.
runtime::StateSnapshot MakeState(uint64_t seed, int64_t elements = 512);

// A header of which every field says `step`.
runtime::CheckpointHeader MakeHeader(int64_t step);

}  // namespace fusor::test
