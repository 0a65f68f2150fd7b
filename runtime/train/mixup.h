#pragma once

#include <cstdint>

namespace fusor::runtime {

// Mixup (Zhang et al., ICLR 2018) as NVIDIA's script has it: one coefficient a
// batch. Each sample becomes c x + (1 - c) x', its loss c L(y) + (1 - c) L(y'),
// where the partner is the next sample of the batch; in a shuffled batch that
// is as random as any permutation. The mixing itself is in the graph.
//
// The coefficient of a step: from Beta(alpha, alpha), a pure function of its
// arguments.
double MixupCoefficient(double alpha, uint64_t seed, int64_t step);

}  // namespace fusor::runtime
