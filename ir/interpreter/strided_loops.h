#pragma once

// Helpers shared by the interpreter rules of several op families. Result
// tensors are allocated and zero-filled before a rule runs; the interpreter
// rounds them to their dtypes afterwards.

#include <span>
#include <vector>

#include "ir/interpreter/interpreter.h"

namespace fusor::ir {

using EvalInputs = std::span<const Tensor* const>;
using EvalOutputs = std::span<Tensor* const>;

// Returns the row-major strides, in elements.
std::vector<int64_t> RowMajorStrides(const Shape& shape);

// Calls row(offset, length, step) for each innermost row of `shape`, in
// row-major order. Element i of the row is at the strided position offset + i *
// step.
template <typename Row>
void ForEachRow(const Shape& shape, const std::vector<int64_t>& strides,
                Row row) {
  const size_t outer = shape.empty() ? 0 : shape.size() - 1;
  const int64_t length = shape.empty() ? 1 : shape.back();
  const int64_t step = shape.empty() ? 1 : strides.back();
  std::vector<int64_t> index(outer, 0);
  int64_t offset = 0;
  for (;;) {
    row(offset, length, step);
    size_t d = outer;
    for (; d > 0; --d) {
      offset += strides[d - 1];
      if (++index[d - 1] < shape[d - 1]) break;
      offset -= index[d - 1] * strides[d - 1];
      index[d - 1] = 0;
    }
    if (d == 0) return;
  }
}

// out = in[sum of i[d] * strides[d]] for the indices i of `shape`, row-major.
void GatherStrided(const double* in, const Shape& shape,
                   const std::vector<int64_t>& strides, double* out);
// Scatters out[sum of i[d] * strides[d]] = in, the reverse.
void ScatterStrided(const double* in, const Shape& shape,
                    const std::vector<int64_t>& strides, double* out);

}  // namespace fusor::ir
