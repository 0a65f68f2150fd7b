#include "ir/support/philox.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

namespace fusor {
namespace {

using Block = std::array<uint32_t, 4>;

// Expects the kat_vectors of the Random123 distribution for philox4x32 with 10
// rounds.
TEST(Philox, ReproducesTheKnownAnswersOfRandom123) {
  EXPECT_EQ(Philox({0, 0, 0, 0}, 0),
            (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
                   0xffffffffffffffff),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                   0x299f31d0a4093822),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, IsUsableAtCompileTime) {
  static_assert(Philox({0, 0, 0, 0}, 0)[0] == 0x6627e8d5);
  static_assert(UniformFloat(0) == 0.0f);
  static_assert(UniformFloat(0xffffffff) < 1.0f);
  SUCCEED();
}

TEST(Philox, UniformKeepsTheTopTwentyFourBits) {
  EXPECT_EQ(UniformFloat(0x80000000), 0.5f);
  EXPECT_EQ(UniformFloat(0x000000ff), 0.0f);
  EXPECT_EQ(UniformFloat(0x00000100), 0x1p-24f);
  EXPECT_EQ(UniformFloat(0xffffffff), 1.0f - 0x1p-24f);
}

// Expects the output of tests/golden/philox.py, which draws weights and inputs
// for the stored PyTorch values. `units` is the value times 2^24.
TEST(Philox, RandomUniformMatchesTheNumpyGenerator) {
  struct Case {
    uint64_t key;
    uint32_t step, site, rank;
    uint64_t index;
    uint32_t units;
  };
  const Case cases[] = {
      {0x0, 0, 0, 0, 0, 0x6627e8},
      {0x4, 0, 160, 0, 1023, 0xd550dc},
      {0x1, 1, 0, 0, 98303, 0x76349b},
      {0x123456789abcdef0, 7, 3, 2, 6, 0xaf05f1},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(RandomUniform(c.key, c.step, c.site, c.rank, c.index),
              static_cast<float>(c.units) * 0x1p-24f)
        << "key " << c.key << " site " << c.site << " index " << c.index;
  }
}

TEST(Philox, EveryCoordinateSelectsAnotherStream) {
  const float base = RandomUniform(1, 2, 3, 4, 5);
  EXPECT_NE(RandomUniform(9, 2, 3, 4, 5), base);
  EXPECT_NE(RandomUniform(1, 9, 3, 4, 5), base);
  EXPECT_NE(RandomUniform(1, 2, 9, 4, 5), base);
  EXPECT_NE(RandomUniform(1, 2, 3, 9, 5), base);
  EXPECT_NE(RandomUniform(1, 2, 3, 4, 9), base);
}

}  // namespace
}  // namespace fusor
