#pragma once

// Maps the elements of an image to the windows of a pooling: runs of identical
// blocks, with separate runs at the borders.

#include <cstdint>
#include <vector>

namespace fusor::codegen {

// An input tap: an index of the source that an index of the result depends on.
// A window is an index of the pooled tensor; its elements are image indices.
struct Tap {
  int64_t offset;    // source index - block * WindowDim::source_scale
  int64_t position;  // of the image index within the window
  int64_t inside;    // number of indices of the window inside the image
  bool operator==(const Tap&) const = default;
};

// An output element, at index block * WindowDim::result_scale + offset.
struct Cell {
  int64_t offset;
  std::vector<Tap> taps{};
  bool operator==(const Cell&) const = default;
};

// Consecutive blocks with equal cells.
struct WindowRun {
  int64_t first;
  int64_t blocks;
  std::vector<Cell> cells;
};

// The blocks of one spatial dimension.
struct WindowDim {
  int64_t source_scale = 1;
  int64_t result_scale = 1;
  std::vector<WindowRun> runs{};
};

// Extents of the image and the pooled tensor, and the window parameters.
struct WindowGeometry {
  int64_t image, pooled;
  int64_t window, stride, pad;
};

// Returns the blocks if the result is the pooled tensor: one per window.
WindowDim ForwardWindows(const WindowGeometry& geometry);

// Returns the blocks if the result is the image: one per `stride` image
// indices, so that all blocks except at the borders have the same windows.
WindowDim BackwardWindows(const WindowGeometry& geometry);

}  // namespace fusor::codegen
