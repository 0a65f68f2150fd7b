#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ir/interpreter/interpreter.h"

namespace fusor::inspect {

// Returns random values for a graph input: close to the initial value for
// constant-initialised state, of the initialiser's spread for other state, unit
// variance for other floating-point data, 0 .. 255 for u8, 0 .. 3 for other
// integers (labels), positive for hyper-parameters. Values are exact in the
// dtype.
//
// A pure function of seed, name and type. A graph before and after a rewrite
// therefore gets the same values, whatever its other inputs are. Exception:
// DrawInputs computes weight copies from their weights.
ir::Tensor DrawInput(const ir::Input& input, uint64_t seed);
std::vector<ir::Tensor> DrawInputs(const ir::Graph& graph, uint64_t seed);

// If a max_pool_grad or max_pool_gather reads `value`: returns positions in its
// layout, computed by a max_pool of random numbers. Arbitrary positions could
// point outside the image, and no kernel checks that.
std::optional<ir::Tensor> DrawPositions(const ir::Value& value, uint64_t key);

}  // namespace fusor::inspect
