#pragma once

#include "runtime/data/augment/pixel_ops.h"

namespace fusor::runtime {

enum class Interpolation { kNearest, kBilinear };

// Geometric ops of torchvision on PIL images, in place. What comes from outside
// the image is black.

// Shears around the upper left corner: row y moves by `slope` * y to the left,
// or column x by `slope` * x upwards.
void ShearX(Pixels image, double slope, Interpolation interpolation,
            AugmentScratch& scratch);
void ShearY(Pixels image, double slope, Interpolation interpolation,
            AugmentScratch& scratch);
// Moves to the right and down by whole pixels.
void Translate(Pixels image, int x, int y, AugmentScratch& scratch);
// Rotates around the centre, counterclockwise.
void Rotate(Pixels image, double degrees, Interpolation interpolation,
            AugmentScratch& scratch);

}  // namespace fusor::runtime
