#pragma once

// Resizing of images and sampling at computed positions, for all importers.
// Tensors are floats, if nothing else is said.

#include <cstdint>
#include <vector>

#include "ir/builder.h"

namespace fusor::models {

// The elements of a dimension that one element of a result reads, and their
// weights. A position outside the dimension reads its first or last element.
struct Taps {
  std::vector<int64_t> positions;
  std::vector<double> weights;
};

struct ResizeFilter {
  bool cubic = false;  // Keys' cubic convolution (1981), or a triangle
  double a = -0.75;    // of Keys' filter
  // Less than 1: the size of the result over that of x. The filter then covers
  // all of x, so that the result has no aliases.
  double antialias = 1;
  bool exclude_outside = false;  // the weights of the elements inside sum to 1
};

// Returns the taps around position `at` of a dimension of `extent` elements.
Taps TapsAt(const ResizeFilter& filter, double at, int64_t extent);

// Replaces the elements of a dimension by weighted sums of them. Any number
// type if all weights are 1.
ir::Value* Resampled(ir::Builder& b, ir::Value* x, int64_t dim,
                     const std::vector<Taps>& elements);

struct GridSampling {
  enum class Padding { kZeros, kBorder, kReflection };
  int64_t taps = 2;  // per dimension; 1: nearest, 2: linear, 4: cubic
  Padding padding = Padding::kZeros;
  // Whether -1 and 1 are the centres of the outermost elements, or the borders
  // of x.
  bool align_corners = false;
};

// Returns whether x is [N,C,D..] with r dimensions D, 1 to 3, and grid
// [N,out..,r].
bool IsGridOf(const ir::Value* grid, const ir::Value* x);

// Samples x at the grid's positions, from -1 to 1, last dimension first
// -> [N,C,out..]. REQUIRES: IsGridOf(grid, x).
ir::Value* SampledAtGrid(ir::Builder& b, ir::Value* x, ir::Value* grid,
                         const GridSampling& sampling);

// Returns whether `size` is [N,C,D..] with r dimensions D, 2 or 3, and theta
// [N,r,r+1].
bool IsAffineMap(const ir::Value* theta, const std::vector<int64_t>& size);

// Multiplies theta by each position of an image of `size` -> [N,D..,r], a grid.
// REQUIRES: IsAffineMap(theta, size).
ir::Value* AffineGrid(ir::Builder& b, ir::Value* theta,
                      const std::vector<int64_t>& size, bool align_corners);

}  // namespace fusor::models
