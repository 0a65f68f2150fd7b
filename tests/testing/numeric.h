#pragma once

// Makes tensors with known contents and compares tensors.

#include <gtest/gtest.h>

#include <initializer_list>
#include <vector>

#include "ir/interpreter/interpreter.h"

namespace fusor::test {

// REQUIRES: `values` has one entry per element of the type.
ir::Tensor MakeTensor(ir::TensorType type, std::vector<double> values);

// Draws from Philox stream `seed`: floats uniform in [low, high) and rounded to
// the dtype, integers from low to high - 1, bools with equal probability.
ir::Tensor RandomTensor(const ir::TensorType& type, uint64_t seed,
                        double low = -1, double high = 1);

// Checks |actual - expected| <= absolute + relative * |expected| for every
// element. NaN equals NaN, infinities equal themselves. Types must be equal,
// layouts need not. The message names the worst element.
::testing::AssertionResult AllClose(const ir::Tensor& actual,
                                    const ir::Tensor& expected, double relative,
                                    double absolute = 0);

// Returns max |actual - expected| / max |expected|, or the numerator if all of
// `expected` is zero. Returns infinity if NaNs differ.
double MaxRelativeError(const ir::Tensor& actual, const ir::Tensor& expected);

}  // namespace fusor::test
