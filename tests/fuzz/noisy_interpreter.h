#pragma once

// Measures how far a correct program may differ from the interpreter.
// Interprets the graph many times. Each time, it moves every floating-point
// result at random by the error that rounding and another order of summation
// may have (Monte Carlo arithmetic, Parker 1997). If a comparison or a maximum
// may flip, it flips in some samples.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ir/interpreter/interpreter.h"

namespace fusor::fuzz {

struct NoiseOptions {
  uint64_t seed = 0;
  int samples = 6;
  double amplitude = 2;  // relative to the rounding error of a result
};

// The permitted outputs of a graph.
struct NoisyOutputs {
  std::vector<ir::Tensor> typed;  // without noise, one per output
  std::vector<std::vector<ir::Tensor>> samples;  // with noise
  bool overflow = false;                         // an f16 value is not finite
  bool may_spread = false;  // a convolution may spread NaN (ir/graph.h)
};
NoisyOutputs InterpretNoisy(const ir::Graph& graph,
                            std::span<const ir::Tensor> inputs,
                            const NoiseOptions& options);

// Returns why `actual` cannot be output `index`, such as "element 3: got 1,
// expected 2 within 1e-6". Returns nullopt if it can.
std::optional<std::string> Mismatch(const NoisyOutputs& expected, size_t index,
                                    const ir::Tensor& actual);

}  // namespace fusor::fuzz
