#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/data/image/image.h"
#include "runtime/data/image/resize_passes.h"

namespace fusor::runtime {

// A resize as defined by Pillow's Image.resize(result, BILINEAR, box),
// optionally restricted to a window of the result.
struct ResizeSpec {
  ImageSize source;
  // Source rectangle that maps to the result: edges in pixels, within the
  // source. As in Pillow, filter taps may be outside it.
  float left = 0;
  float top = 0;
  float right = 0;
  float bottom = 0;
  ImageSize result;
  Region window;      // part of the result to compute
  bool flip = false;  // mirror the window left to right
};

// Resizes all of a `source` image to `result`.
ResizeSpec ResizeWhole(ImageSize source, ImageSize result);

// Antialiased bilinear resampling in the arithmetic of Pillow's Resample.c:
// triangle filter, 22-bit fixed point, horizontal pass first, 8-bit
// intermediate. Bit-identical to Pillow, except where Pillow 13 and later run
// the vertical pass first (the height shrinks by more than twice as much as the
// width); there the difference is at most 1 level. Keeps tables and scratch
// between images. Not thread-safe.
class Resizer {
 public:
  // Computes the tables for `spec`.
  void Plan(const ResizeSpec& spec);

  // Returns the part of the source that Run reads.
  Region source_region() const;

  // Resizes `source`, the pixels of source_region(), into the window at `out`:
  // [window height, window width, 3], contiguous.
  void Run(const Image& source, uint8_t* out);

 private:
  void PlanAxis(int source, float low, float high, int result, int begin,
                int count, ResizeAxis& axis);
  void FlipColumns();

  ResizeAxis columns_;
  ResizeAxis rows_;
  int width_ = 0;  // of the window
  int height_ = 0;
  std::vector<double> exact_;  // weights of one position
  ResizeScratch scratch_;
};

}  // namespace fusor::runtime
