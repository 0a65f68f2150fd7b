// Checks which implementations of a convolution the backend offers, and which
// comes first.

#include <gmock/gmock.h>

#include <set>
#include <string>

#include "tests/runtime/cpu/cpu_fixture.h"
#include "tests/runtime/cpu/one_node.h"

namespace fusor::test {
namespace {

using ir::DType;
using ::testing::HasSubstr;

const ConvCase kWide{16, 64, 64, 56, 3, 1, 1, 1, 1};
const ConvCase kSmall{16, 512, 512, 7, 3, 1, 1, 1, 1};
const ConvCase kPixel{16, 64, 256, 14, 1, 1, 0, 1, 1};
const ConvCase kStridedPixel{16, 64, 256, 14, 1, 2, 0, 1, 1};
const ConvCase kStrided{16, 64, 128, 56, 3, 2, 1, 1, 1};
const ConvCase kConvolutions[] = {kWide, kSmall, kPixel, kStridedPixel,
                                  kStrided};

TEST(CpuCandidatesTest, CandidatesHaveDifferentNames) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const ConvCase& c : kConvolutions) {
      for (const auto& one : ConvNodes(c, dtype)) {
        std::set<std::string> names;
        for (const auto& candidate :
             Cpu::Get().compiler().Candidates(*one->node)) {
          EXPECT_TRUE(names.insert(candidate.name).second)
              << one->node->op_name() << ": " << candidate.name;
        }
      }
    }
  }
}

TEST(CpuCandidatesTest, ConvolutionsInBf16RunOnAmx) {
  if (!Cpu::Get().compiler().target().amx) GTEST_SKIP() << "no AMX";
  for (const ConvCase& c : kConvolutions) {
    for (const auto& one : ConvNodes(c, DType::kBF16)) {
      const auto candidates = Cpu::Get().compiler().Candidates(*one->node);
      ASSERT_FALSE(candidates.empty());
      EXPECT_THAT(candidates[0].implementation, HasSubstr("amx"))
          << one->node->op_name();
    }
  }
  const auto algorithm = [](const ConvCase& c, std::string_view op) {
    for (const auto& one : ConvNodes(c, DType::kBF16)) {
      if (one->node->op_name() != op) continue;
      return Cpu::Get().compiler().Candidates(*one->node).at(0).algorithm;
    }
    return std::string();
  };
  EXPECT_EQ(algorithm(kWide, "conv2d_grad_weight"), "amx");
  EXPECT_EQ(algorithm(kSmall, "conv2d_grad_weight"), "im2col");
  EXPECT_EQ(algorithm(kWide, "conv2d_grad_input"), "direct");
  EXPECT_EQ(algorithm(kSmall, "conv2d_grad_input"), "amx");
  EXPECT_EQ(algorithm(kStrided, "conv2d_grad_input"), "amx");
  EXPECT_EQ(algorithm(kPixel, "conv2d_grad_input"), "im2col");
  EXPECT_EQ(algorithm(kPixel, "conv2d_grad_weight"), "im2col");
  const ConvCase small_groups{2, 48, 48, 14, 3, 1, 1, 1, 6};
  for (const char* op : {"conv2d", "conv2d_grad_input", "conv2d_grad_weight"}) {
    EXPECT_EQ(algorithm(small_groups, op), "amx") << op;
  }
}

// Unless blocks divide the channels.
TEST(CpuCandidatesTest, DepthwiseConvolutionsBesideAmxHaveChannelsLast) {
  if (!Cpu::Get().compiler().target().amx) GTEST_SKIP() << "no AMX";
  const ir::Layout last = ir::ParseLayout("acdb");
  for (const int64_t channels : {72, 96}) {
    for (const int64_t kernel : {3, 5}) {
      const ConvCase c{2, channels,   channels, 14,      kernel,
                       1, kernel / 2, 1,        channels};
      for (const auto& one : ConvNodes(c, DType::kBF16)) {
        SCOPED_TRACE(testing::Message() << one->node->op_name() << " of "
                                        << channels << ", " << kernel);
        const auto candidates = Cpu::Get().compiler().Candidates(*one->node);
        ASSERT_FALSE(candidates.empty());
        EXPECT_EQ(candidates[0].operands[0] == last, channels == 72);
        if (kernel > 3 && one->node->op_name() == "conv2d_grad_weight") {
          EXPECT_EQ(candidates[0].algorithm, "grouped");
        }
      }
    }
  }
}

}  // namespace
}  // namespace fusor::test
