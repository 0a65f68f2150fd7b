#include "ir/interpreter/strided_loops.h"

namespace fusor::ir {

std::vector<int64_t> RowMajorStrides(const Shape& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) {
    strides[d - 1] = strides[d] * shape[d];
  }
  return strides;
}

void GatherStrided(const double* in, const Shape& shape,
                   const std::vector<int64_t>& strides, double* out) {
  ForEachRow(shape, strides, [&](int64_t offset, int64_t length, int64_t step) {
    for (int64_t i = 0; i < length; ++i) *out++ = in[offset + i * step];
  });
}

void ScatterStrided(const double* in, const Shape& shape,
                    const std::vector<int64_t>& strides, double* out) {
  ForEachRow(shape, strides, [&](int64_t offset, int64_t length, int64_t step) {
    for (int64_t i = 0; i < length; ++i) out[offset + i * step] = *in++;
  });
}

}  // namespace fusor::ir
