#pragma once

// Tensors with known contents and comparisons of tensors.

#include <gtest/gtest.h>

#include <initializer_list>
#include <vector>

#include "ir/interpreter/interpreter.h"

namespace fusor::test {

// REQUIRES: as many values as the type has elements.
ir::Tensor MakeTensor(ir::TensorType type, std::vector<double> values);

// Uniform in [low, high) from Philox stream `seed`, rounded to the dtype; the
// integers low .. high-1 for integer dtypes, fair coins for bool.
ir::Tensor RandomTensor(const ir::TensorType& type, uint64_t seed,
                        double low = -1, double high = 1);

// Every |actual - expected| <= absolute + relative * |expected|; NaN equals
// NaN, infinities equal themselves. Types (but not layouts) must be equal. The
// message names the worst element.
::testing::AssertionResult AllClose(const ir::Tensor& actual,
                                    const ir::Tensor& expected, double relative,
                                    double absolute = 0);

// max |actual - expected| / max |expected|, the plain maximum where all of
// expected is zero; infinite when NaNs differ.
double MaxRelativeError(const ir::Tensor& actual, const ir::Tensor& expected);

}  // namespace fusor::test
