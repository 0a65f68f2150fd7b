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
// A pure function of seed, name and type. So a graph gets the same values
// before and after a rewrite, even if its other inputs differ. Exception:
// DrawInputs derives weight copies, as in kTyped, from their weights.
ir::Tensor DrawInput(const ir::Input& input, uint64_t seed);
std::vector<ir::Tensor> DrawInputs(const ir::Graph& graph, uint64_t seed);

// Sets each weight copy to its weight's values, as the cast that it replaces
// computes them: rounded in kTyped, unrounded in kExact. Keeps a copy whose
// weight is no input of the graph. `inputs` correspond to graph.inputs().
void DeriveWeightCopies(const ir::Graph& graph, ir::EvalMode mode,
                        std::vector<ir::Tensor>& inputs);

// If a max_pool_grad or max_pool_gather reads `value`, perhaps within a fusion:
// returns positions in its layout, computed by a max_pool of random numbers.
// Arbitrary positions could point outside the image, and no kernel checks that.
std::optional<ir::Tensor> DrawPositions(const ir::Value& value, uint64_t key);

}  // namespace fusor::inspect
