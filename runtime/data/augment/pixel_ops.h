#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/data/image/image.h"

namespace fusor::runtime {

// An 8-bit RGB image in memory of another owner: [height, width, 3].
struct Pixels {
  uint8_t* data = nullptr;
  int width = 0;
  int height = 0;

  size_t row_bytes() const { return size_t{3} * static_cast<size_t>(width); }
  size_t size() const { return row_bytes() * static_cast<size_t>(height); }
};

// Memory that ops reuse.
struct AugmentScratch {
  std::vector<uint8_t> bytes;
  std::vector<float> floats;
};

// Ops of torchvision.transforms.functional on PIL images, in place, in Pillow's
// arithmetic. Equal to torchvision, except the blur, which may differ by 1
// level.

// A factor of 1 changes nothing; 0 gives black, the mean grey, greys, a
// smoothed image.
void AdjustBrightness(Pixels image, double factor);
void AdjustContrast(Pixels image, double factor);
void AdjustSaturation(Pixels image, double factor);
void AdjustSharpness(Pixels image, double factor, AugmentScratch& scratch);
// Turns the hue by `share`, from -0.5 to 0.5, of a full circle.
void AdjustHue(Pixels image, double share);
// Keeps the highest `bits` of each level.
void Posterize(Pixels image, int bits);
// Inverts levels from `threshold` on.
void Solarize(Pixels image, double threshold);
// Stretches each channel to 0 to 255.
void AutoContrast(Pixels image);
// Equalises the histogram of each channel.
void Equalize(Pixels image);
void Invert(Pixels image);
void MakeGrey(Pixels image);
// Convolves with a normalised Gaussian of `kernel` x `kernel` pixels (odd).
// Pixels outside the image are mirrored.
void GaussianBlur(Pixels image, int kernel, double sigma,
                  AugmentScratch& scratch);

// Adds the same number of levels to all pixels of a channel.
void AddLevels(Pixels image, const std::array<double, 3>& levels);
// Returns the mean levels of red, green and blue.
std::array<double, 3> MeanColour(Pixels image);
// Fills the region with a colour.
void FillRegion(Pixels image, const Region& region,
                const std::array<uint8_t, 3>& colour);

}  // namespace fusor::runtime
