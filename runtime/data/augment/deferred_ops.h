#pragma once

#include <array>
#include <cstdint>

namespace fusor::runtime {

// An affine map of colours: row c computes the level of channel c from those of
// red, green and blue, and 1.
struct ColourMap {
  std::array<std::array<float, 4>, 3> rows = {
      {{1, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, 1, 0}}};
};

// Ops of a sample that the training graph applies, in the layout of its inputs:
// see models::ModelOptions::augment. The default changes nothing.
struct DeferredOps {
  ColourMap colour;
  // Left, top, right and bottom of the region of the mean colour; ends
  // excluded.
  std::array<int32_t, 4> box = {};
};

// Append the ops of pixel_ops.h to a map, without their rounding and clipping.
void AdjustBrightness(ColourMap& map, double factor);
// `mean`: levels of the mean colour of the image before the map.
void AdjustContrast(ColourMap& map, const std::array<double, 3>& mean,
                    double factor);
void AdjustSaturation(ColourMap& map, double factor);
void MakeGrey(ColourMap& map);
void AddLevels(ColourMap& map, const std::array<double, 3>& levels);

}  // namespace fusor::runtime
