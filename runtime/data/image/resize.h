#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/data/image/image.h"

namespace fusor::runtime {

// A resize as Pillow's Image.resize(result, BILINEAR, box) defines it, of
// which only a part may be wanted.
struct ResizeSpec {
  ImageSize source;
  // The source rectangle that becomes the result: edges in pixels, within the
  // source. Filter taps may lie outside of it, as in Pillow.
  float left = 0;
  float top = 0;
  float right = 0;
  float bottom = 0;
  ImageSize result;
  Region window;      // the part of the result that is computed
  bool flip = false;  // mirror the window left to right
};

// All of a `source` image resized to `result`.
ResizeSpec ResizeWhole(ImageSize source, ImageSize result);

// The filter of one axis of a resize. Result position i is the sum over t of
// weights[i * taps + t] * source[begin + first[i] + t], scaled by 2^22.
struct ResizeAxis {
  int begin = 0;  // the source positions that any weight touches
  int end = 0;
  int taps = 0;
  std::vector<int> first;
  std::vector<int32_t> weights;
};

// Antialiased bilinear resampling in the arithmetic of Pillow's Resample.c:
// triangle filter, 22-bit fixed point, columns first, 8 bits in between. The
// bytes equal Pillow's, except where Pillow 13 and later take rows first (the
// height shrinks by more than twice what the width does): there they are within
// 1 level. Keeps its tables and scratch from image to image; one thread at a
// time.
class Resizer {
 public:
  // Computes the tables for `spec`.
  void Plan(const ResizeSpec& spec);

  // The part of the source that Run reads.
  Region source_region() const;

  // Resizes `source`, the pixels of source_region(), into the window at `out`,
  // [window height, window width, 3] without gaps.
  void Run(const Image& source, uint8_t* out);

 private:
  void PlanAxis(int source, float low, float high, int result, int begin,
                int count, ResizeAxis& axis);
  void FlipColumns();

  ResizeAxis columns_;
  ResizeAxis rows_;
  int width_ = 0;  // of the window
  int height_ = 0;
  std::vector<double> exact_;    // weights of one position
  std::vector<int32_t> wide_;    // one source row
  std::vector<int32_t> sums_;    // one row of the window
  std::vector<uint8_t> narrow_;  // [source rows, width_, 3]
};

}  // namespace fusor::runtime
