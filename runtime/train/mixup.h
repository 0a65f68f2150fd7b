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

// Mixup and CutMix (Yun et al., ICCV 2019), as in torchvision and timm. A step
// that has both chooses CutMix with `switch_probability`.
struct MixOptions {
  double mixup = 0;   // alpha; 0: off
  double cutmix = 0;  // alpha; 0: off
  double switch_probability = 0.5;
};

// How a step mixes each sample with the next one of the batch.
struct Mix {
  // Weight of the sample's own label, and of its pixels if the box is empty.
  double share = 1;
  // CutMix: the pixels that come from the next sample, ends excluded.
  int left = 0;
  int top = 0;
  int right = 0;
  int bottom = 0;
};

// Draws the mix of a step: a pure function of its arguments. `image_size` is
// the side of the images. A box has the area 1 - c with c from Beta(alpha,
// alpha), and its centre anywhere in the image, which cuts it off; the share is
// that of the pixels outside.
Mix DrawMix(const MixOptions& options, uint64_t seed, int64_t step,
            int image_size);

}  // namespace fusor::runtime
