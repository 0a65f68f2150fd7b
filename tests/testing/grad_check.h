#pragma once

// Gradients against finite differences.

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "ir/builder.h"
#include "tests/testing/numeric.h"

namespace fusor::test {

// Builds the function under test from the graph's inputs: one or more results.
using GraphFunction = std::function<std::vector<ir::Value*>(
    ir::Builder& builder, const std::vector<ir::Value*>& inputs)>;

// Differentiates sum over the floating-point results of <result, random
// weights> with respect to every floating-point input and compares each
// element of each gradient with the four-point central difference, in fp64.
// The function must be smooth within 2e-3 of the inputs. A gradient may differ
// by `tolerance` times the largest of its input.
::testing::AssertionResult GradCheck(const GraphFunction& function,
                                     const std::vector<ir::Tensor>& inputs,
                                     double tolerance = 1e-8);

}  // namespace fusor::test
