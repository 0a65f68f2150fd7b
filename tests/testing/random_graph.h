#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ir/graph.h"
#include "ir/interpreter/interpreter.h"

namespace fusor::test {

// Classes of ops that a random graph is made of.
enum OpClass : unsigned {
  kElementwise = 1,  // arithmetic and smooth functions; constants, iota
  kBroadcast = 2,
  kReduce = 4,
  kMovement = 8,  // reshape, transpose, slice, pad, concat; copy with layouts
  // compare, select, logic, floor: results jump where operands barely differ
  kCompare = 16,
  kCast = 32,  // among floats; to and from integers and bool with kCompare
  kAllOps = 63,
  kLibrary = 64,  // convolution, matmul, pooling, batch normalisation
  kMisc = 128,    // stop_gradient, is_finite, random, access by index, cumsum,
                  // sin, cos, integer arithmetic
  // Ops without a gradient: gradients of library ops, all_finite,
  // sum_of_squares, flatten, collectives of one rank, space_to_depth.
  kNoGradient = 256,
  kDifferentiable = kAllOps | kLibrary | kMisc,
  // Every op of the registry, if layouts and fusions are enabled, too.
  kEveryOp = kDifferentiable | kNoGradient,
};

struct RandomGraphOptions {
  int inputs = 3;
  int nodes = 20;  // at least; an op may need others for its operands
  int max_rank = 4;
  int64_t max_extent = 6;  // of inputs
  unsigned ops = kAllOps;
  std::vector<ir::DType> dtypes = {ir::DType::kF32};  // for inputs and casts
  bool layouts = false;  // inputs in permuted and blocked layouts
  bool states = false;   // parameters among the inputs, aliases, locations
  bool fusions = false;  // some nodes are fusions of small random bodies
  double repeat = 0;     // chance that a second operand is the first one
  bool wrap = false;     // u8 and bool may leave their range
  bool inputs_as_outputs = false;  // including inputs that have other uses
};

// Returns a verified graph, the same for the same seed and options on every
// machine. Every value is used or an output, except statistics and positions of
// library ops. For RandomInputs, all values are finite and far from overflow in
// every dtype. To that end, logarithms, roots, quotients and powers have
// positive operands, and large values are reduced by tanh (integers: clamped)
// before they grow further.
std::unique_ptr<ir::Graph> RandomGraph(uint64_t seed,
                                       const RandomGraphOptions& options = {});

// Returns a random graph as a model: its floating-point inputs are weights, and
// output "loss" is the sum of its floating-point outputs. REQUIRES: the options
// allow no op of kNoGradient, no fusions, no layouts and no states.
std::unique_ptr<ir::Graph> RandomModel(uint64_t seed,
                                       const RandomGraphOptions& options);

// Returns one tensor per input of any graph: floats in [-2, 2), integers from
// -4 (u8: 0) to 4, or bools. All are exact in their dtype.
std::vector<ir::Tensor> RandomInputs(const ir::Graph& graph, uint64_t seed);

}  // namespace fusor::test
