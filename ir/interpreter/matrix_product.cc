#include "ir/interpreter/matrix_product.h"

#include <algorithm>

namespace fusor::ir {
namespace {

constexpr int64_t kPanel = PackedMatrix::kPanel;
// Panel rows per pass, 16 KiB: they stay in the L1 cache.
constexpr int64_t kDepth = 256;
// Rows of `out` accumulated in registers together.
constexpr int64_t kRows = 2;

// Computes one [kRows, kPanel] tile of the result over `depth` terms.
void AddTile(const double* a0, const double* a1, const double* panel,
             int64_t depth, double* out0, double* out1, int64_t width) {
  double sum0[kPanel] = {};
  double sum1[kPanel] = {};
  for (int64_t k = 0; k < depth; ++k) {
    const double* row = panel + k * kPanel;
    for (int64_t j = 0; j < kPanel; ++j) sum0[j] += a0[k] * row[j];
    for (int64_t j = 0; j < kPanel; ++j) sum1[j] += a1[k] * row[j];
  }
  for (int64_t j = 0; j < width; ++j) out0[j] += sum0[j];
  if (out1 == nullptr) return;
  for (int64_t j = 0; j < width; ++j) out1[j] += sum1[j];
}

}  // namespace

PackedMatrix::PackedMatrix(const double* data, int64_t rows, int64_t columns,
                           int64_t row_stride, int64_t column_stride)
    : rows_(rows), columns_(columns) {
  const int64_t panels = (columns + kPanel - 1) / kPanel;
  data_.resize(panels * rows * kPanel);
  double* to = data_.data();
  for (int64_t first = 0; first < columns; first += kPanel) {
    const int64_t width = std::min(kPanel, columns - first);
    for (int64_t i = 0; i < rows; ++i, to += kPanel) {
      const double* from = data + i * row_stride + first * column_stride;
      for (int64_t j = 0; j < width; ++j) to[j] = from[j * column_stride];
    }
  }
}

void AddProduct(std::span<const double* const> a, const PackedMatrix& b,
                std::span<double* const> out) {
  const int64_t rows = static_cast<int64_t>(a.size());
  for (int64_t first = 0; first < b.columns(); first += kPanel) {
    const double* panel = b.panel(first / kPanel);
    const int64_t width = std::min(kPanel, b.columns() - first);
    for (int64_t k = 0; k < b.rows(); k += kDepth) {
      const int64_t depth = std::min(kDepth, b.rows() - k);
      for (int64_t i = 0; i < rows; i += kRows) {
        const bool pair = i + 1 < rows;
        AddTile(a[i] + k, a[pair ? i + 1 : i] + k, panel + k * kPanel, depth,
                out[i] + first, pair ? out[i + 1] + first : nullptr, width);
      }
    }
  }
}

}  // namespace fusor::ir
