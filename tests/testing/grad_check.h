#pragma once

// Compares gradients with finite differences.

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "ir/builder.h"
#include "tests/testing/numeric.h"

namespace fusor::test {

// Builds the function under test from the graph's inputs. Returns one or more
// results.
using GraphFunction = std::function<std::vector<ir::Value*>(
    ir::Builder& builder, const std::vector<ir::Value*>& inputs)>;

// Differentiates the dot product of the floating-point results and random
// weights with respect to every floating-point input, in fp64. Compares every
// element of every gradient with the four-point central difference. The
// function must be smooth within 2e-3 of the inputs. `tolerance` is relative to
// the largest element of a gradient, or absolute if that is below 1.
::testing::AssertionResult GradCheck(const GraphFunction& function,
                                     const std::vector<ir::Tensor>& inputs,
                                     double tolerance = 1e-8);

}  // namespace fusor::test
