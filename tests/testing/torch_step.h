#pragma once

// What the training steps stored under tests/golden/torch start from, and how
// their tensors are stored; tests/golden/README.md has the formulas.

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ir/interpreter/interpreter.h"

namespace fusor::test {

// Image size and batch of a stored step: spec["sharp"], "blunt" or "curve".
struct StepSize {
  int64_t image;
  int64_t batch;
};
StepSize StepSizeOf(const nlohmann::json& spec, const std::string& step);

// Parameters and running statistics by torchvision's names, "images" f32
// [N,3,S,S] and "labels" i32 [N].
std::map<std::string, ir::Tensor> DrawStepInputs(const nlohmann::json& spec,
                                                 const StepSize& size,
                                                 uint64_t seed);

// Norm, eight projections and samples of a tensor; `position` among all
// gradients, then all running statistics.
std::vector<double> Fingerprint(const ir::Tensor& tensor, uint32_t position,
                                uint64_t seed);

// The tensor's fingerprint is the stored one: norm and projections to within
// `tolerance` of the norm, samples to within as much of the root mean square.
::testing::AssertionResult HasFingerprint(const ir::Tensor& actual,
                                          const ir::Tensor& stored,
                                          uint32_t position, uint64_t seed,
                                          double tolerance);

// A model's name as part of a test's: letters and digits.
std::string TestNameOf(const std::string& model);

}  // namespace fusor::test
