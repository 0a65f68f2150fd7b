#pragma once

// Inputs of the training steps stored under tests/golden/torch, and
// fingerprints of their tensors. tests/golden/README.md has the formulas.

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ir/interpreter/interpreter.h"

namespace fusor::test {

// Image and batch size of a stored step: spec["sharp"], "blunt" or "curve".
struct StepSize {
  int64_t image;
  int64_t batch;
};
StepSize StepSizeOf(const nlohmann::json& spec, const std::string& step);

// Draws parameters and running statistics by torchvision's names, "images" f32
// [N,3,S,S] and "labels" i32 [N].
std::map<std::string, ir::Tensor> DrawStepInputs(const nlohmann::json& spec,
                                                 const StepSize& size,
                                                 uint64_t seed);

// Computes norm, eight projections and samples of a tensor. `position` numbers
// all gradients, then all running statistics.
std::vector<double> Fingerprint(const ir::Tensor& tensor, uint32_t position,
                                uint64_t seed);

// Checks the tensor's fingerprint against the stored one. `tolerance` is
// relative to the norm for norm and projections, and to the root mean square
// for samples.
::testing::AssertionResult HasFingerprint(const ir::Tensor& actual,
                                          const ir::Tensor& stored,
                                          uint32_t position, uint64_t seed,
                                          double tolerance);

// Converts a model's name to letters and digits, for names of tests.
std::string TestNameOf(const std::string& model);

}  // namespace fusor::test
