#include "runtime/data/image/resize.h"

#include <algorithm>
#include <cmath>

#include "ir/support/error.h"

namespace fusor::runtime {

ResizeSpec ResizeWhole(ImageSize source, ImageSize result) {
  return {.source = source,
          .right = static_cast<float>(source.width),
          .bottom = static_cast<float>(source.height),
          .result = result,
          .window = WholeImage(result)};
}

void Resizer::PlanAxis(int source, float low, float high, int result, int begin,
                       int count, ResizeAxis& axis) {
  const double scale = static_cast<double>(high - low) / result;
  const double support = std::max(scale, 1.0);
  const double inverse = 1.0 / support;
  const auto centre = [&](int i) { return low + (begin + i + 0.5) * scale; };
  const auto last = [&](int i) {
    return std::min(source, static_cast<int>(centre(i) + support + 0.5));
  };
  axis.first.resize(count);
  axis.begin = source;
  axis.end = 0;
  axis.taps = 0;
  for (int i = 0; i < count; ++i) {
    axis.first[i] = std::max(0, static_cast<int>(centre(i) - support + 0.5));
    axis.begin = std::min(axis.begin, axis.first[i]);
    axis.end = std::max(axis.end, last(i));
    axis.taps = std::max(axis.taps, last(i) - axis.first[i]);
  }
  axis.weights.assign(static_cast<size_t>(count) * axis.taps, 0);
  exact_.resize(axis.taps);
  for (int i = 0; i < count; ++i) {
    const int taps = last(i) - axis.first[i];
    double sum = 0;
    for (int t = 0; t < taps; ++t) {
      const double distance = (t + axis.first[i] - centre(i) + 0.5) * inverse;
      exact_[t] = std::max(0.0, 1.0 - std::abs(distance));
      sum += exact_[t];
    }
    int32_t* weights = &axis.weights[static_cast<size_t>(i) * axis.taps];
    for (int t = 0; t < taps; ++t) {
      weights[t] =
          static_cast<int32_t>(0.5 + exact_[t] / sum * (1 << kResizeBits));
    }
    axis.first[i] -= axis.begin;
  }
}

// Mirrors the result by reversing positions, not the taps of each.
void Resizer::FlipColumns() {
  std::reverse(columns_.first.begin(), columns_.first.end());
  const auto weights = columns_.weights.begin();
  const int taps = columns_.taps;
  for (int i = 0, j = width_ - 1; i < j; ++i, --j) {
    std::swap_ranges(weights + i * taps, weights + (i + 1) * taps,
                     weights + j * taps);
  }
}

void Resizer::Plan(const ResizeSpec& spec) {
  const Region& window = spec.window;
  FUSOR_ASSERT(
      window.x >= 0 && window.y >= 0 && window.width > 0 && window.height > 0 &&
          window.x + window.width <= spec.result.width &&
          window.y + window.height <= spec.result.height,
      "window {}x{} at ({}, {}) of a {}x{} result", window.width, window.height,
      window.x, window.y, spec.result.width, spec.result.height);
  FUSOR_ASSERT(spec.left >= 0 && spec.top >= 0 && spec.left < spec.right &&
                   spec.top < spec.bottom &&
                   spec.right <= static_cast<float>(spec.source.width) &&
                   spec.bottom <= static_cast<float>(spec.source.height),
               "box ({}, {}, {}, {}) of a {}x{} source", spec.left, spec.top,
               spec.right, spec.bottom, spec.source.width, spec.source.height);
  width_ = window.width;
  height_ = window.height;
  PlanAxis(spec.source.width, spec.left, spec.right, spec.result.width,
           window.x, width_, columns_);
  PlanAxis(spec.source.height, spec.top, spec.bottom, spec.result.height,
           window.y, height_, rows_);
  if (spec.flip) FlipColumns();
}

Region Resizer::source_region() const {
  return {columns_.begin, rows_.begin, columns_.end - columns_.begin,
          rows_.end - rows_.begin};
}

void Resizer::Run(const Image& source, uint8_t* out) {
  const Region region = source_region();
  FUSOR_ASSERT(source.width == region.width && source.height == region.height,
               "source {}x{}, planned for {}x{}", source.width, source.height,
               region.width, region.height);
  static const ResizeFunction resize = ResizeFunctions().front();
  resize({.source = source, .columns = columns_, .rows = rows_, .out = out},
         scratch_);
}

}  // namespace fusor::runtime
