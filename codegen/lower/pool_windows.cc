#include "codegen/lower/pool_windows.h"

#include <algorithm>
#include <utility>

namespace fusor::codegen {
namespace {

void AddBlock(WindowDim& dim, int64_t block, std::vector<Cell> cells) {
  if (!dim.runs.empty() && dim.runs.back().cells == cells) {
    ++dim.runs.back().blocks;
  } else {
    dim.runs.push_back({block, 1, std::move(cells)});
  }
}

int64_t Begin(const WindowGeometry& g, int64_t i) {
  return i * g.stride - g.pad;
}

int64_t Inside(const WindowGeometry& g, int64_t i) {
  return std::min(Begin(g, i) + g.window, g.image) -
         std::max<int64_t>(Begin(g, i), 0);
}

}  // namespace

WindowDim ForwardWindows(const WindowGeometry& g) {
  WindowDim dim{.source_scale = g.stride};
  for (int64_t i = 0; i < g.pooled; ++i) {
    Cell cell{0};
    for (int64_t r = 0; r < g.window; ++r) {
      const int64_t row = Begin(g, i) + r;
      if (row < 0 || row >= g.image) continue;
      cell.taps.push_back({r - g.pad, r, Inside(g, i)});
    }
    AddBlock(dim, i, {std::move(cell)});
  }
  return dim;
}

WindowDim BackwardWindows(const WindowGeometry& g) {
  WindowDim dim{.result_scale = g.stride};
  for (int64_t block = 0; block * g.stride < g.image; ++block) {
    std::vector<Cell> cells;
    for (int64_t u = 0; u < g.stride && block * g.stride + u < g.image; ++u) {
      const int64_t row = block * g.stride + u;
      Cell cell{u};
      const int64_t last = std::min((row + g.pad) / g.stride, g.pooled - 1);
      // Windows i with i * stride <= before end before the row.
      const int64_t before = row + g.pad - g.window;
      const int64_t first = before < 0 ? 0 : before / g.stride + 1;
      for (int64_t i = first; i <= last; ++i) {
        cell.taps.push_back({i - block, row - Begin(g, i), Inside(g, i)});
      }
      cells.push_back(std::move(cell));
    }
    AddBlock(dim, block, std::move(cells));
  }
  return dim;
}

}  // namespace fusor::codegen
