#pragma once

#include <cstdint>

namespace fusor::runtime {

// Returns the mixup coefficient of a step, drawn from Beta(alpha, alpha): a
// pure function of its arguments. Returns 1, which mixes nothing, if alpha is
// 0.
//
// Mixup (Zhang et al., ICLR 2018) as in NVIDIA's script: one coefficient c per
// batch. Each sample becomes c x + (1 - c) x', its loss c L(y) + (1 - c) L(y').
// The partner is the next sample of the batch; in a shuffled batch that is as
// random as any permutation. The graph does the mixing.
double MixupCoefficient(double alpha, uint64_t seed, int64_t step);

}  // namespace fusor::runtime
