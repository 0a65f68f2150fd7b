#pragma once

#include <cstdint>
#include <memory>

#include "ir/graph.h"

namespace fusor::test {

// Returns a verified graph that codegen::LowerContraction takes, the same for
// the same seed on every machine: a matmul, or a 1x1 convolution or one of its
// gradients, of small extents, many of them primes, in a random dtype and
// layouts. Most have nodes that compute a factor, such as a normalisation with
// ReLU, and nodes that read the result, such as a residual sum. Sums of the
// fusor::test::RandomInputs do not overflow.
std::unique_ptr<ir::Graph> RandomContraction(uint64_t seed);

// Returns one that codegen::LowerTensorCore takes: of 16-bit floats, channels
// last, extents of 64, 128 or 192. Half of them have column sums.
std::unique_ptr<ir::Graph> RandomTensorCoreContraction(uint64_t seed);

// Returns the largest MaxRelativeError of a kernel's results for that graph.
double ContractionTolerance(const ir::Graph& graph);

}  // namespace fusor::test
