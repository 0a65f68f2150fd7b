#include <gtest/gtest.h>

#include <algorithm>

#include "codegen/kernel/access_analysis.h"
#include "codegen/lower/lower.h"
#include "ir/interpreter/host_tensor.h"
#include "ir/io/printer.h"
#include "passes/fusion/contraction.h"
#include "tests/testing/numeric.h"
#include "tests/testing/random_contraction.h"
#include "tests/testing/random_graph.h"

namespace fusor::codegen {
namespace {

// Lowers the body, proves it, and interprets its kernel.
std::vector<ir::Tensor> RunBody(const ir::Graph& body,
                                std::span<const ir::Tensor> inputs,
                                const ir::Target& target) {
  const LoweredKernel lowered = LowerContraction(body, target, false);
  Verify(lowered.kernel);
  CheckResults(lowered);
  std::vector<std::vector<uint8_t>> storage;
  for (const ir::Tensor& input : inputs) {
    storage.push_back(ir::TensorBytes(input));
  }
  for (size_t b = storage.size(); b < lowered.kernel.buffers.size(); ++b) {
    storage.emplace_back(lowered.kernel.buffers[b].num_bytes());
  }
  std::vector<void*> pointers;
  for (std::vector<uint8_t>& bytes : storage) pointers.push_back(bytes.data());
  InterpretKernel(lowered.kernel, pointers.data());
  std::vector<ir::Tensor> results;
  for (size_t i = 0; i < body.outputs().size(); ++i) {
    results.push_back(ir::LoadTensor(body.outputs()[i].value->type(),
                                     storage[inputs.size() + i]));
  }
  return results;
}

TEST(LowerContraction, RandomContractionsAgreeWithTheInterpreter) {
  for (uint64_t seed = 0; seed < 300 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    const auto body = test::RandomContraction(seed);
    std::string reason;
    if (!passes::AnalyzeContraction(*body, &reason).has_value()) continue;
    const auto inputs = test::RandomInputs(*body, seed);
    const auto expected = ir::Interpret(*body, inputs, ir::EvalMode::kTyped);
    for (const char* name : {"cpu-avx2", "cpu-avx512"}) {
      const auto actual = RunBody(*body, inputs, ir::FindTarget(name));
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_LT(test::MaxRelativeError(actual[i], expected[i]),
                  test::ContractionTolerance(*body))
            << name << " output " << i << "\n"
            << ir::Print(*body);
      }
    }
  }
}

}  // namespace
}  // namespace fusor::codegen
