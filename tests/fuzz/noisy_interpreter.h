#pragma once

// How far a right program may be from the interpreter: measured, not estimated.
// The graph is interpreted many times with every floating result moved at
// random by what rounding and another order of summation may move it (Monte
// Carlo arithmetic, Parker 1997). Where a comparison or a maximum may fall the
// other way, some samples do.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ir/interpreter/interpreter.h"

namespace fusor::fuzz {

struct NoiseOptions {
  uint64_t seed = 0;
  int samples = 6;
  double amplitude = 2;  // in roundings of a result
};

// What the outputs of a graph may be.
struct NoisyOutputs {
  std::vector<ir::Tensor> typed;  // without noise, one per output
  std::vector<std::vector<ir::Tensor>> samples;  // with noise
  bool overflow = false;                         // a value of f16 is not finite
  bool may_spread = false;  // a convolution may spread NaN (ir/graph.h)
};
NoisyOutputs InterpretNoisy(const ir::Graph& graph,
                            std::span<const ir::Tensor> inputs,
                            const NoiseOptions& options);

// Why `actual` cannot be output `index`: "element 3: got 1, expected 2 within
// 1e-6"; nullopt if it can.
std::optional<std::string> Mismatch(const NoisyOutputs& expected, size_t index,
                                    const ir::Tensor& actual);

}  // namespace fusor::fuzz
