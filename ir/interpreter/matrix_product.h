#pragma once

// The fp64 matmul of the interpreter's matmul and convolutions. Plain C++, one
// thread. The summation order depends only on the extents.

#include <cstdint>
#include <span>
#include <vector>

namespace fusor::ir {

// A [rows, columns] matrix packed into panels of kPanel columns, so that
// AddProduct reads it contiguously.
class PackedMatrix {
 public:
  static constexpr int64_t kPanel = 8;

  // Element (i, j) is data[i * row_stride + j * column_stride].
  PackedMatrix(const double* data, int64_t rows, int64_t columns,
               int64_t row_stride, int64_t column_stride);

  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  // Returns panel i: rows() rows of kPanel elements. Zeros pad the last panel.
  const double* panel(int64_t i) const {
    return data_.data() + i * rows_ * kPanel;
  }

 private:
  int64_t rows_;
  int64_t columns_;
  std::vector<double> data_;
};

// Computes out[i][j] += sum over k of a[i][k] * b(k, j). a[i] holds b.rows()
// elements, out[i] b.columns(). The rows of `out` are distinct.
void AddProduct(std::span<const double* const> a, const PackedMatrix& b,
                std::span<double* const> out);

}  // namespace fusor::ir
