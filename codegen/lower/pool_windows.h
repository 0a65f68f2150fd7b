#pragma once

// Which elements of an image lie in which windows of a pooling, as loops over
// equal blocks and what is left at the borders.

#include <cstdint>
#include <vector>

namespace fusor::codegen {

// One index of the source that an index of the result depends on. A window is
// an index of the pooled tensor, its elements are the image's.
struct Tap {
  int64_t offset;  // of the source's index from block * WindowDim::source_scale
  int64_t position;  // of the image's index in the window
  int64_t inside;    // indices of the window that lie inside the image
  bool operator==(const Tap&) const = default;
};

// An index of the result: block * WindowDim::result_scale + offset.
struct Cell {
  int64_t offset;
  std::vector<Tap> taps{};
  bool operator==(const Cell&) const = default;
};

// Consecutive blocks that have the same cells.
struct WindowRun {
  int64_t first;
  int64_t blocks;
  std::vector<Cell> cells;
};

// One spatial dimension: blocks, what they compute and from what.
struct WindowDim {
  int64_t source_scale = 1;
  int64_t result_scale = 1;
  std::vector<WindowRun> runs{};
};

// Extents of the image and of what it is pooled into, and the windows.
struct WindowGeometry {
  int64_t image, pooled;
  int64_t window, stride, pad;
};

// The result is the pooled tensor: a block is a window.
WindowDim ForwardWindows(const WindowGeometry& geometry);

// The result is the image: a block is as many of its indices as windows lie
// apart, so that all blocks have the same windows, but at the borders.
WindowDim BackwardWindows(const WindowGeometry& geometry);

}  // namespace fusor::codegen
