#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "codegen/kernel/access_analysis.h"
#include "codegen/lower/lower.h"
#include "ir/interpreter/host_tensor.h"
#include "ir/io/printer.h"
#include "passes/fusion/contraction.h"
#include "tests/testing/graph_text.h"
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

// Lowers a 1x1 convolution's weight gradient for AVX2.
Kernel WeightGradient(int64_t stride) {
  const auto body = test::ParseOrDie(fmt::format(
      R"(graph g {{
        %x = data : f32[2,64,{0},{0}]{{aBcd8b}}
        %dy = data : f32[2,128,14,14]{{aBcd8b}}
        %dw = conv2d_grad_weight(%x, %dy) {{weight_shape=[128,64,1,1],
            stride=[{1},{1}]}} : f32[128,64,1,1]{{ABcd8b8a}}
        return %dw as "dw"
      }})",
      14 * stride, stride));
  return LowerContraction(*body, ir::FindTarget("cpu-avx2"), false).kernel;
}

// 16 vectors are no tiles of 3 and one of 1, whose sums would not hide the
// latency of FMAs.
TEST(LowerContraction, TilesAreOfSimilarSizes) {
  std::vector<int64_t> groups;
  for (const Axis& axis : WeightGradient(1).axes) {
    if (axis.name == "group") groups.push_back(axis.extent);
  }
  EXPECT_EQ(groups, (std::vector<int64_t>{3, 2}));
}

bool HasBuffer(const Kernel& kernel, const std::string& name) {
  return std::any_of(kernel.buffers.begin(), kernel.buffers.end(),
                     [&](const KernelBuffer& b) { return b.name == name; });
}

TEST(LowerContraction, StridedRowsAreGathered) {
  EXPECT_FALSE(HasBuffer(WeightGradient(1), "rows"));
  EXPECT_TRUE(HasBuffer(WeightGradient(2), "rows"));
}

// A matmul whose operands have long rows, along which it does not add.
TEST(LowerContraction, DistantElementsArePacked) {
  const auto lower = [](int64_t m, int64_t n) {
    const auto body = test::ParseOrDie(fmt::format(
        R"(graph g {{
          %x = data : f32[100,{0}]
          %y = data : f32[100,{1}]
          %z = matmul(%x, %y) {{transpose_a=true}} : f32[{0},{1}]
          return %z as "z"
        }})",
        m, n));
    return LowerContraction(*body, ir::FindTarget("cpu-avx2"), false).kernel;
  };
  EXPECT_FALSE(HasBuffer(lower(64, 64), "rows"));
  EXPECT_FALSE(HasBuffer(lower(64, 64), "packed"));
  EXPECT_TRUE(HasBuffer(lower(256, 64), "rows"));
  EXPECT_FALSE(HasBuffer(lower(256, 64), "packed"));
  EXPECT_TRUE(HasBuffer(lower(64, 256), "packed"));
}

}  // namespace
}  // namespace fusor::codegen
