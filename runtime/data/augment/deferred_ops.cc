#include "runtime/data/augment/deferred_ops.h"

#include <cmath>
#include <cstddef>

namespace fusor::runtime {
namespace {

using Row = std::array<float, 4>;

// Returns the row of the grey level, by the weights of pixel_ops.cc.
Row GreyRow(const ColourMap& map) {
  constexpr std::array<float, 3> kWeights = {19595.0F / 65536, 38470.0F / 65536,
                                             7471.0F / 65536};
  Row grey = {};
  for (size_t c = 0; c < 3; ++c) {
    for (size_t i = 0; i < 4; ++i) grey[i] += kWeights[c] * map.rows[c][i];
  }
  return grey;
}

// Blends each row: from `degenerate` at factor 0 to itself at 1 and beyond.
void Blend(ColourMap& map, const Row& degenerate, double factor) {
  const auto share = static_cast<float>(factor);
  for (Row& row : map.rows) {
    for (size_t i = 0; i < 4; ++i) {
      row[i] = degenerate[i] + share * (row[i] - degenerate[i]);
    }
  }
}

}  // namespace

void AdjustBrightness(ColourMap& map, double factor) { Blend(map, {}, factor); }

void AdjustContrast(ColourMap& map, const std::array<double, 3>& mean,
                    double factor) {
  const Row row = GreyRow(map);
  double grey = row[3];
  for (size_t c = 0; c < 3; ++c) grey += row[c] * mean[c];
  // A whole level, as in AdjustContrast of pixels.
  Blend(map, {0, 0, 0, static_cast<float>(std::floor(grey + 0.5))}, factor);
}

void AdjustSaturation(ColourMap& map, double factor) {
  Blend(map, GreyRow(map), factor);
}

void MakeGrey(ColourMap& map) { map.rows.fill(GreyRow(map)); }

void AddLevels(ColourMap& map, const std::array<double, 3>& levels) {
  for (size_t c = 0; c < 3; ++c) {
    map.rows[c][3] += static_cast<float>(levels[c]);
  }
}

}  // namespace fusor::runtime
