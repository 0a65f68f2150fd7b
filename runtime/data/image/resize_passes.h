#pragma once

#include <cstdint>
#include <vector>

#include "runtime/data/image/image.h"

namespace fusor::runtime {

// Weights are fixed-point numbers with this many bits after the point.
constexpr int kResizeBits = 22;

// Filter of one axis of a resize. Result i is the sum over t of weights[i *
// taps + t] * source[begin + first[i] + t], scaled by 2^22. Weights are not
// negative. Taps of weight zero may be outside the range of the source.
struct ResizeAxis {
  int begin = 0;  // range of source positions with any weight
  int end = 0;
  int taps = 0;
  std::vector<int> first;
  std::vector<int32_t> weights;
};

// The two passes of a resize: columns, then rows. The result of the first has
// 8 bits per value, as in Pillow.
struct ResizePasses {
  const Image& source;  // columns.begin to columns.end, rows.begin to rows.end
  const ResizeAxis& columns;
  const ResizeAxis& rows;
  uint8_t* out;  // [result rows, result columns, 3]
};

// Memory of the passes, reused between images.
struct ResizeScratch {
  std::vector<uint8_t> row;     // of the source
  std::vector<uint8_t> narrow;  // [source rows, result columns, 3]
  std::vector<int32_t> sums;    // one row of values
  // Tables of the vectorised implementations.
  std::vector<int> offsets;      // bytes of a column's first tap in its row
  std::vector<int16_t> weights;  // of the columns, in the order of their use
  std::vector<int32_t> pairs;    // weights of a row's taps
};

// Runs both passes.
using ResizeFunction = void (*)(const ResizePasses& passes,
                                ResizeScratch& scratch);

// Returns the implementations that this CPU can run, the fastest first; the
// last one has plain loops. All compute the same bytes.
std::vector<ResizeFunction> ResizeFunctions();

}  // namespace fusor::runtime
