#pragma once

// The fp64 matrix product under the interpreter's matmul and convolutions.
// Plain C++, one thread; its order of summation depends on the extents alone.

#include <cstdint>
#include <span>
#include <vector>

namespace fusor::ir {

// A [rows, columns] matrix in panels of a few columns, so that the product
// reads it contiguously.
class PackedMatrix {
 public:
  static constexpr int64_t kPanel = 8;

  // Element (i, j) is data[i * row_stride + j * column_stride].
  PackedMatrix(const double* data, int64_t rows, int64_t columns,
               int64_t row_stride, int64_t column_stride);

  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  // Rows of kPanel elements; the last panel is filled up with zeros.
  const double* panel(int64_t i) const {
    return data_.data() + i * rows_ * kPanel;
  }

 private:
  int64_t rows_;
  int64_t columns_;
  std::vector<double> data_;
};

// out[i][j] += sum over k of a[i][k] * b(k, j). a[i] holds b.rows() elements,
// out[i] b.columns(); the rows of `out` are distinct.
void AddProduct(std::span<const double* const> a, const PackedMatrix& b,
                std::span<double* const> out);

}  // namespace fusor::ir
