#include "runtime/initial_values.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "ir/interpreter/host_tensor.h"
#include "ir/support/philox.h"

namespace fusor::runtime {
namespace {

constexpr uint64_t kSeed = 7;
constexpr uint64_t kStream = 0x123456789;

TEST(NormalPairs, AreThoseOfTheDefinition) {
  for (uint32_t first = 0; first < 100 * kNormalPairs; first += kNormalPairs) {
    double even[kNormalPairs], odd[kNormalPairs];
    NormalPairs(kSeed, kStream, first, even, odd);
    for (uint32_t i = 0; i < kNormalPairs; ++i) {
      const auto bits = Philox({first + i, 0, static_cast<uint32_t>(kStream),
                                static_cast<uint32_t>(kStream >> 32)},
                               kSeed);
      const long double radius = std::sqrt(
          -2 * std::log(static_cast<long double>(OpenUniform(bits[0]))));
      const long double angle = 2 * std::acos(-1.0L) * OpenUniform(bits[1]);
      EXPECT_NEAR(even[i], static_cast<double>(radius * std::cos(angle)),
                  4e-15);
      EXPECT_NEAR(odd[i], static_cast<double>(radius * std::sin(angle)), 4e-15);
    }
  }
}

TEST(NormalPairs, HaveTheSameBitsOneAtATime) {
  double even[kNormalPairs], odd[kNormalPairs];
  NormalPairs(kSeed, kStream, 1000, even, odd);
  for (uint32_t i = 0; i < kNormalPairs; ++i) {
    EXPECT_EQ(NormalPair(kSeed, kStream, 1000 + i), std::pair(even[i], odd[i]));
  }
}

// Compares the moments with a standard normal distribution's, to within five
// standard errors.
TEST(NormalPairs, AreNormal) {
  constexpr int kBlocks = 4000;
  constexpr double kCount = 2.0 * kBlocks * kNormalPairs;
  double sum = 0, square = 0, cube = 0, fourth = 0, product = 0;
  for (int block = 0; block < kBlocks; ++block) {
    double even[kNormalPairs], odd[kNormalPairs];
    NormalPairs(kSeed, kStream, static_cast<uint32_t>(block * kNormalPairs),
                even, odd);
    for (int i = 0; i < kNormalPairs; ++i) {
      product += even[i] * odd[i];
      for (const double x : {even[i], odd[i]}) {
        sum += x;
        square += x * x;
        cube += x * x * x;
        fourth += x * x * x * x;
      }
    }
  }
  const double error = 5 / std::sqrt(kCount);
  EXPECT_NEAR(sum / kCount, 0, error);
  EXPECT_NEAR(square / kCount, 1, error * std::sqrt(2));
  EXPECT_NEAR(cube / kCount, 0, error * std::sqrt(15));
  EXPECT_NEAR(fourth / kCount, 3, error * std::sqrt(96));
  EXPECT_NEAR(2 * product / kCount, 0, error * std::sqrt(2));
}

// A range of elements at any offset equals that of the whole tensor.
class InitialValuesTest : public testing::TestWithParam<std::string> {};

TEST_P(InitialValuesTest, PartsAreThoseOfTheWhole) {
  ir::Attrs init;
  init.Set("init", GetParam());
  init.Set(GetParam() == "normal" ? "std" : "bound", 0.5);
  constexpr int64_t kElements = 1001;
  const std::vector<float> whole = InitialValues(init, kElements, "w", kSeed);
  const InitialTensor tensor(init, "w", kSeed);
  for (const int64_t first : {0, 1, 2, 127, 128, 129, 500}) {
    std::vector<float> part(kElements - first);
    tensor.Fill({ir::DType::kF32, {kElements}, {}}, first, part);
    EXPECT_EQ(part, std::vector<float>(whole.begin() + first, whole.end()))
        << first;
  }
}

TEST_P(InitialValuesTest, LayoutsHoldTheSameElements) {
  ir::Attrs init;
  init.Set("init", GetParam());
  init.Set(GetParam() == "normal" ? "std" : "bound", 0.5);
  const ir::TensorType blocked{
      ir::DType::kF32, {32, 16, 3, 3}, {{}, {{0, 8}, {1, 8}}}};
  const auto whole = InitialValues(init, blocked.num_elements(), "w", kSeed);
  const auto bytes = ir::TensorBytes({blocked, {whole.begin(), whole.end()}});
  std::vector<float> expected(whole.size());
  ASSERT_EQ(bytes.size(), whole.size() * sizeof(float));
  std::memcpy(expected.data(), bytes.data(), bytes.size());
  std::vector<float> filled(whole.size());
  InitialTensor(init, "w", kSeed).Fill(blocked, 0, filled);
  EXPECT_EQ(filled, expected);
}

INSTANTIATE_TEST_SUITE_P(Kinds, InitialValuesTest,
                         testing::Values("normal", "uniform"));

}  // namespace
}  // namespace fusor::runtime
