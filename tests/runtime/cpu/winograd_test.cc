// Compares Winograd F(2x2, 3x3) in bf16 and F(4x4, 3x3) in f32 with the
// interpreter without rounding.

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "ir/op.h"
#include "ir/support/error.h"
#include "ir/target/conv_problem.h"
#include "tests/runtime/cpu/cpu_fixture.h"
#include "tests/runtime/cpu/one_node.h"
#include "tests/testing/numeric.h"

namespace fusor::test {
namespace {

using codegen::LibraryCall;
using ir::DType;
using ir::Tensor;
using ir::TensorType;
using ::testing::IsEmpty;
using ::testing::Not;

// Unit roundoff of bf16.
constexpr double kUnit = 0x1p-8;

// Returns the expected error for operands with independent elements, relative
// to the result's root mean square. Rounding to bf16 has an error of 0.42
// kUnit. The transforms increase the variance of the sums by (5/3)^2 relative
// to the result. Each product has two rounded factors, and bf16 results are
// rounded once more.
double ExpectedError(const TensorType& result) {
  const double result_rounding = result.dtype == DType::kBF16 ? 1 : 0;
  return 0.42 * kUnit * std::sqrt(2 * 25.0 / 9 + result_rounding);
}

std::vector<ir::LibraryCandidate> Candidates(const OneNode& one,
                                             std::string_view algorithm) {
  auto candidates = Cpu::Get().compiler().Candidates(*one.node);
  std::erase_if(candidates,
                [&](const auto& c) { return c.algorithm != algorithm; });
  return candidates;
}

LibraryCall CallOf(const OneNode& one, std::string_view algorithm) {
  const auto c = Candidates(one, algorithm).at(0);
  return one.Call(c.operands, c.results, c.algorithm);
}

double RootMeanSquare(const std::vector<double>& values) {
  double sum = 0;
  for (double v : values) sum += v * v;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

// Root mean square and maximum of the error, relative to the root mean square
// of `expected`.
struct Errors {
  double mean = 0, worst = 0;
};

Errors ErrorsOf(const Tensor& actual, const Tensor& expected) {
  const double scale = RootMeanSquare(expected.data);
  std::vector<double> errors;
  Errors result;
  for (size_t i = 0; i < expected.data.size(); ++i) {
    errors.push_back((actual.data[i] - expected.data[i]) / scale);
    result.worst = std::max(result.worst, std::abs(errors.back()));
  }
  result.mean = RootMeanSquare(errors);
  return result;
}

class WinogradTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto nodes = ConvNodes({1, 16, 16, 4, 3, 1, 1, 1, 1}, DType::kBF16);
    if (Candidates(*nodes[0], "winograd").empty()) {
      GTEST_SKIP() << "no AVX-512 with bf16";
    }
  }
};

// Partial tiles, blocks of tiles and groups of channels; odd numbers of blocks
// and images; every padding; more partitions than tiles; enough channels to
// partition a weight gradient by them.
const ConvCase kCases[] = {
    {2, 16, 16, 8, 3, 1, 1, 1, 1},
    {1, 48, 80, 7, 3, 1, 1, 1, 1, true, true},
    {3, 32, 112, 6, 3, 1, 0, 1, 1, true},
    {1, 64, 48, 5, 3, 1, 2, 1, 1, false, true},
    {8, 16, 32, 17, 3, 1, 1, 1, 1},
    {1, 32, 16, 1, 3, 1, 1, 1, 1, true},
    {2, 16, 64, 3, 3, 1, 0, 1, 1},
    {1, 16, 512, 4, 3, 1, 1, 1, 1, true, true},
    {1, 32, 32, 5, 3, 1, 0, 1, 1, true, true, 12, 2},
    {2, 16, 16, 40, 3, 1, 1, 1, 1, false, false, 3, 1},
};

TEST_F(WinogradTest, ErrorsAreThoseOfRoundingTransformedOperands) {
  for (const ConvCase& c : kCases) {
    for (const auto& one : ConvNodes(c, DType::kBF16)) {
      ASSERT_THAT(Candidates(*one, "winograd"), Not(IsEmpty()));
      const auto operands = one->Operands();
      const Tensor expected = one->Expected(operands)[0];
      LibraryCall call = CallOf(*one, "winograd");
      const Tensor actual = RunCall(call, operands)[0];
      EXPECT_THAT(call.implementation, ::testing::HasSubstr("fusor_wino"));
      const Errors errors = ErrorsOf(actual, expected);
      const double theory = ExpectedError(call.results[0]);
      EXPECT_LE(errors.mean, 1.5 * theory)
          << call.op_name() << " " << ToString(call.operands[0]) << " -> "
          << ToString(call.results[0]);
      EXPECT_LE(errors.worst, 8 * theory)
          << call.op_name() << " " << ToString(call.operands[0]) << " -> "
          << ToString(call.results[0]);
    }
  }
}

// A direct convolution only rounds its result.
TEST_F(WinogradTest, IsLessExactThanADirectConvolutionByAKnownFactor) {
  const auto nodes = ConvNodes({2, 64, 64, 12, 3, 1, 1, 1, 1}, DType::kBF16);
  for (size_t i : {0, 1}) {
    const auto operands = nodes[i]->Operands();
    const Tensor expected = nodes[i]->Expected(operands)[0];
    LibraryCall ours = CallOf(*nodes[i], "winograd");
    LibraryCall direct = CallOf(*nodes[i], "direct");
    const double winograd_error =
        ErrorsOf(RunCall(ours, operands)[0], expected).mean;
    const double direct_error =
        ErrorsOf(RunCall(direct, operands)[0], expected).mean;
    EXPECT_GT(winograd_error, 1.5 * direct_error);
    EXPECT_LT(winograd_error, 3.5 * direct_error);
  }
}

TEST_F(WinogradTest, BiasMayBeF32) {
  const TensorType x{DType::kBF16, {2, 16, 6, 6}, {}};
  const TensorType w{DType::kBF16, {32, 16, 3, 3}, {}};
  const OneNode one("conv2d", {x, w, {DType::kF32, {32}, {}}},
                    {{"pad", std::vector<int64_t>{1, 1}}});
  const auto operands = one.Operands();
  LibraryCall call = CallOf(one, "winograd");
  const Tensor actual = RunCall(call, operands)[0];
  const Errors errors = ErrorsOf(actual, one.Expected(operands)[0]);
  EXPECT_LE(errors.mean, 1.5 * ExpectedError(call.results[0]));
}

TEST_F(WinogradTest, GivesTheSameBitsEachTime) {
  for (const auto& one : ConvNodes(kCases[4], DType::kBF16)) {
    const auto operands = one->Operands();
    LibraryCall call = CallOf(*one, "winograd");
    const Tensor first = RunCall(call, operands)[0];
    EXPECT_EQ(RunCall(call, operands)[0].data, first.data) << call.op_name();
  }
}

// Dynamic loss scaling relies on this. Elements of the same tile may become
// NaN.
TEST_F(WinogradTest, WhatIsNotFiniteStaysSo) {
  const auto nodes =
      ConvNodes({1, 16, 16, 9, 3, 1, 1, 1, 1, false, true}, DType::kBF16);
  for (double bad : {std::numeric_limits<double>::infinity(),
                     std::numeric_limits<double>::quiet_NaN()}) {
    for (const auto& one : nodes) {
      auto operands = one->Operands();
      operands[0].data[100] = bad;
      const Tensor expected = one->Expected(operands)[0];
      LibraryCall call = CallOf(*one, "winograd");
      const Tensor actual = RunCall(call, operands)[0];
      for (size_t i = 0; i < expected.data.size(); ++i) {
        if (std::isfinite(expected.data[i])) continue;
        EXPECT_FALSE(std::isfinite(actual.data[i]))
            << call.op_name() << " " << i;
      }
    }
  }
}

// The cost model prefers it to a direct convolution if its tiles fit.
TEST_F(WinogradTest, ComesFirstUnlessTilesAreMostlyPadding) {
  if (Cpu::Get().compiler().target().amx) GTEST_SKIP() << "AMX is faster";
  const auto first = [](const ConvCase& c) {
    return Cpu::Get()
        .compiler()
        .Candidates(*ConvNodes(c, DType::kBF16)[0]->node)
        .front()
        .algorithm;
  };
  EXPECT_EQ(first({16, 64, 64, 56, 3, 1, 1, 1, 1}), "winograd");
  EXPECT_EQ(first({16, 64, 64, 7, 3, 1, 1, 1, 1}), "winograd");
  EXPECT_EQ(first({16, 64, 64, 3, 3, 1, 1, 1, 1}), "direct");
  EXPECT_EQ(first({16, 64, 64, 56, 3, 2, 1, 1, 1}), "direct");
}

TEST_F(WinogradTest, IsNoCandidateElsewhere) {
  for (const ConvCase& c : {ConvCase{1, 24, 16, 8, 3, 1, 1, 1, 1},
                            ConvCase{1, 16, 16, 8, 3, 1, 3, 1, 1},
                            ConvCase{1, 16, 16, 8, 3, 1, 2, 2, 1},
                            ConvCase{1, 32, 32, 8, 3, 1, 1, 1, 2},
                            ConvCase{1, 16, 16, 8, 5, 1, 1, 1, 1}}) {
    for (const auto& one : ConvNodes(c, DType::kBF16)) {
      EXPECT_THAT(Candidates(*one, "winograd"), IsEmpty());
      EXPECT_THAT(Cpu::Get().compiler().Candidates(*one->node), Not(IsEmpty()));
    }
  }
}

// The parameter is the number of lanes of a vector.
class WideWinogradTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const auto nodes = NodesOf({1, 16, 16, 8, 3, 1, 1, 1, 1});
    if (!RunsOn(*nodes[0])) GTEST_SKIP() << "no such vectors";
  }

  static std::string Implementation() {
    return GetParam() == 16 ? "fusor_wino_4x3:avx512" : "fusor_wino_4x3:avx2";
  }

  // Returns the convolutions that have an implementation.
  static std::vector<std::unique_ptr<OneNode>> NodesOf(const ConvCase& c) {
    auto nodes = ConvNodes(c, DType::kF32);
    std::erase_if(nodes, [&](const auto& one) {
      return GetParam() == 16 && c.groups == 1 && c.c % 16 == 0 &&
             c.o % 16 == 0 &&
             one->node->kind() == ir::OpKind::kConv2dGradWeight;
    });
    return nodes;
  }

  static LibraryCall CallOf(const OneNode& one) {
    const ir::Convolution conv = *ir::ConvolutionOf(*one.node);
    const int64_t lanes = GetParam();
    const int64_t in = conv.weight.shape[1];
    const int64_t out = conv.weight.shape[0] / one.node->attrs().Int("groups");
    const bool blocked =
        conv.x.shape[1] % lanes == 0 && conv.y.shape[1] % lanes == 0;
    const int64_t chunk = in % lanes == 0 && out % lanes == 0 ? lanes : 8;
    const ir::Layout activation = ir::ParseLayout(!blocked      ? "acdb"
                                                  : lanes == 16 ? "aBcd16b"
                                                                : "aBcd8b");
    const ir::Layout weight =
        ir::ParseLayout(chunk == 16 ? "ABcd16b16a" : "ABcd8b8a");
    if (one.node->kind() == ir::OpKind::kConv2dGradWeight) {
      return one.Call({activation, activation}, {weight}, "winograd");
    }
    std::vector<ir::Layout> operands{activation, weight};
    if (one.node->num_inputs() == 3) operands.emplace_back();
    return one.Call(operands, {activation}, "winograd");
  }

  static bool RunsOn(const OneNode& one) {
    LibraryCall call = CallOf(one);
    try {
      Cpu::Get().compiler().PrepareCall(call);
    } catch (const Error&) {
      return false;
    }
    return call.implementation == Implementation();
  }
};

// Partial tiles and panels, odd numbers of blocks, every padding, fewer tiles
// than threads, and enough channels to divide them among threads.
const ConvCase kWideCases[] = {
    {2, 32, 32, 8, 3, 1, 1, 1, 1},
    {1, 48, 80, 7, 3, 1, 1, 1, 1, true},
    {3, 64, 112, 6, 3, 1, 0, 1, 1, true},
    {1, 16, 48, 5, 3, 1, 2, 1, 1},
    {8, 32, 48, 17, 3, 1, 1, 1, 1},
    {1, 32, 32, 1, 3, 1, 1, 1, 1, true},
    {2, 32, 128, 3, 3, 1, 0, 1, 1},
    {1, 512, 272, 4, 3, 1, 1, 1, 1},
    {2, 272, 512, 9, 3, 1, 1, 1, 1, true},
    {1, 64, 64, 5, 3, 1, 0, 1, 1, true, false, 12, 2},
    {4, 32, 32, 40, 3, 1, 1, 1, 1, false, false, 3, 1},
    // Multiples of 8 channels.
    {2, 24, 40, 9, 3, 1, 1, 1, 1, true},
    {1, 8, 32, 18, 3, 1, 2, 1, 1},
    // Groups at multiples of 16 channels and of 8, with channels last if their
    // number is no multiple of 16; few and many tiles and groups.
    {2, 64, 64, 9, 3, 1, 1, 1, 4},
    {1, 48, 96, 7, 3, 1, 1, 1, 2},
    {3, 72, 120, 6, 3, 1, 0, 1, 3, true},
    {1, 32, 32, 20, 3, 1, 1, 1, 4},
    {2, 128, 128, 5, 3, 1, 2, 1, 8, true},
    {8, 48, 48, 33, 3, 1, 1, 1, 3, true},
    {1, 240, 240, 7, 3, 1, 1, 1, 2, true},
    {1, 56, 56, 4, 3, 1, 1, 1, 7},
    {5, 24, 48, 21, 3, 1, 1, 1, 3, true},
};

// The transforms increase the error of a direct convolution several times.
TEST_P(WideWinogradTest, ErrorsAreAFewUnitsInTheLastPlace) {
  constexpr double kUnitOfF32 = 0x1p-24;
  for (const ConvCase& c : kWideCases) {
    for (const auto& one : NodesOf(c)) {
      const auto operands = one->Operands();
      const Tensor expected = one->Expected(operands)[0];
      LibraryCall call = CallOf(*one);
      const Errors errors = ErrorsOf(RunCall(call, operands)[0], expected);
      EXPECT_EQ(call.implementation, Implementation());
      EXPECT_LE(errors.mean, 40 * kUnitOfF32)
          << call.op_name() << " " << ToString(call.operands[0]) << " -> "
          << ToString(call.results[0]);
      EXPECT_LE(errors.worst, 400 * kUnitOfF32)
          << call.op_name() << " " << ToString(call.operands[0]) << " -> "
          << ToString(call.results[0]);
    }
  }
}

// With one sum over all channels the error would be 26 units or more.
TEST_P(WideWinogradTest, ErrorsDoNotGrowWithTheNumberOfChannels) {
  constexpr double kUnitOfF32 = 0x1p-23;
  for (const auto& one : NodesOf({1, 1024, 16, 8, 3, 1, 1, 1, 1})) {
    if (one->node->kind() != ir::OpKind::kConv2d) continue;
    const auto operands = one->Operands();
    LibraryCall call = CallOf(*one);
    const Errors errors =
        ErrorsOf(RunCall(call, operands)[0], one->Expected(operands)[0]);
    EXPECT_LE(errors.mean, 12 * kUnitOfF32);
  }
}

TEST_P(WideWinogradTest, GivesTheSameBitsEachTime) {
  for (const auto& one : NodesOf({3, 32, 48, 13, 3, 1, 1, 1, 1})) {
    const auto operands = one->Operands();
    LibraryCall call = CallOf(*one);
    EXPECT_EQ(RunCall(call, operands)[0].data, RunCall(call, operands)[0].data);
  }
}

TEST_P(WideWinogradTest, WhatIsNotFiniteStaysSo) {
  const auto nodes = NodesOf({1, 16, 16, 9, 3, 1, 1, 1, 1, true});
  for (double bad : {std::numeric_limits<double>::infinity(),
                     std::numeric_limits<double>::quiet_NaN()}) {
    for (const auto& one : nodes) {
      for (size_t operand = 0; operand < one->node->num_inputs(); ++operand) {
        auto operands = one->Operands();
        auto& data = operands[operand].data;
        data[data.size() / 2] = bad;
        const Tensor expected = one->Expected(operands)[0];
        LibraryCall call = CallOf(*one);
        const Tensor actual = RunCall(call, operands)[0];
        EXPECT_EQ(call.implementation, Implementation());
        for (size_t i = 0; i < expected.data.size(); ++i) {
          if (std::isfinite(expected.data[i])) continue;
          EXPECT_FALSE(std::isfinite(actual.data[i]))
              << call.op_name() << " operand " << operand << " " << i;
        }
      }
    }
  }
}

TEST_P(WideWinogradTest, IsNotPlannedElsewhere) {
  for (const ConvCase& c : {ConvCase{1, 12, 16, 8, 3, 1, 1, 1, 1},
                            ConvCase{1, 16, 16, 8, 3, 1, 3, 1, 1},
                            ConvCase{1, 16, 16, 8, 3, 2, 1, 1, 1},
                            ConvCase{1, 32, 32, 8, 3, 1, 1, 1, 8},
                            ConvCase{1, 72, 48, 8, 3, 1, 1, 1, 4},
                            ConvCase{1, 16, 16, 8, 5, 1, 1, 1, 1}}) {
    for (const auto& one : NodesOf(c)) {
      for (const ir::LibraryCandidate& candidate :
           Candidates(*one, "winograd")) {
        EXPECT_NE(candidate.implementation, Implementation());
      }
    }
  }
}

TEST_P(WideWinogradTest, GroupsOfManyChannelsComeFirst) {
  const codegen::TargetCompiler& compiler = Cpu::Get().compiler();
  if (compiler.target().channel_block() != GetParam()) {
    GTEST_SKIP() << "blocks of other vectors";
  }
  for (const auto& one : NodesOf({8, 256, 256, 28, 3, 1, 1, 1, 2})) {
    EXPECT_EQ(compiler.Candidates(*one->node)[0].implementation,
              Implementation());
  }
}

INSTANTIATE_TEST_SUITE_P(Lanes, WideWinogradTest, ::testing::Values(8, 16),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace fusor::test
