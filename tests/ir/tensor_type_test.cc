#include "ir/tensor_type.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "ir/support/error.h"

namespace fusor::ir {
namespace {

using ::testing::HasSubstr;

TensorType Type(Shape shape, std::string_view layout) {
  return {DType::kF32, std::move(shape), ParseLayout(layout)};
}

TEST(TensorType, CountsElementsAndBytes) {
  const TensorType type{DType::kBF16, {2, 3, 5}, {}};
  EXPECT_EQ(type.num_elements(), 30);
  EXPECT_EQ(type.num_bytes(), 60);
  EXPECT_EQ(TensorType{}.num_elements(), 1);
  EXPECT_THROW(NumElements({int64_t{1} << 32, int64_t{1} << 32}), Error);
}

TEST(TensorType, PrintsDtypeShapeAndLayout) {
  EXPECT_EQ(ToString(TensorType{}), "f32[]");
  EXPECT_EQ(ToString({DType::kU8, {4}, {}}), "u8[4]");
  EXPECT_EQ(ToString(Type({8, 64, 56, 56}, "aBcd16b")),
            "f32[8,64,56,56]{aBcd16b}");
}

TEST(Layout, TextRoundTrips) {
  struct Case {
    const char* text;
    Layout layout;
  };
  const Case cases[] = {
      {"", {}},
      {"acdb", {{0, 2, 3, 1}, {}}},
      {"ba", {{1, 0}, {}}},
      {"aBcd16b", {{0, 1, 2, 3}, {{1, 16}}}},
      {"ABcd16b16a", {{0, 1, 2, 3}, {{1, 16}, {0, 16}}}},
      {"ABcd2b8a4b", {{0, 1, 2, 3}, {{1, 2}, {0, 8}, {1, 4}}}},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(ParseLayout(c.text), c.layout) << c.text;
    EXPECT_EQ(FormatLayout(c.layout, c.layout.order.size()), c.text);
  }
}

TEST(Layout, IdentityOrderWithoutTilesIsRowMajor) {
  EXPECT_TRUE(ParseLayout("abcd").is_row_major());
  EXPECT_TRUE(Canonical({{0, 1, 2}, {}}).is_row_major());
  EXPECT_FALSE(Canonical({{0, 1}, {{1, 8}}}).is_row_major());
}

TEST(Layout, TilesOfAnIdentityOrderPrintTheirRank) {
  EXPECT_EQ(FormatLayout({{}, {{1, 8}}}, 3), "aBc8b");
}

TEST(Layout, BadTextIsRejectedWithTheText) {
  for (const char* text : {"ac", "aab", "abc4", "ab4e", "ab0b", "16b", "ab16B",
                           "a b", "ab-1b", "ab4b!", "!"}) {
    try {
      ParseLayout(text);
      ADD_FAILURE() << text << " was accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kGraph);
      EXPECT_THAT(e.what(), HasSubstr(text));
    }
  }
}

TEST(PhysicalOffsets, RowMajorCountsUp) {
  const auto offsets = PhysicalOffsets(Type({2, 3, 4}, ""));
  std::vector<int64_t> expected(24);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(offsets, expected);
  EXPECT_EQ(PhysicalOffsets(Type({}, "")), std::vector<int64_t>{0});
}

TEST(PhysicalOffsets, ChannelsLastIsNhwc) {
  constexpr int64_t kN = 2, kC = 3, kH = 4, kW = 5;
  const auto offsets = PhysicalOffsets(Type({kN, kC, kH, kW}, "acdb"));
  size_t i = 0;
  for (int64_t n = 0; n < kN; ++n) {
    for (int64_t c = 0; c < kC; ++c) {
      for (int64_t h = 0; h < kH; ++h) {
        for (int64_t w = 0; w < kW; ++w) {
          ASSERT_EQ(offsets[i++], ((n * kH + h) * kW + w) * kC + c);
        }
      }
    }
  }
}

TEST(PhysicalOffsets, BlockedChannelsAreNChw16c) {
  constexpr int64_t kN = 2, kC = 32, kH = 3, kW = 5, kBlock = 16;
  const auto offsets = PhysicalOffsets(Type({kN, kC, kH, kW}, "aBcd16b"));
  size_t i = 0;
  for (int64_t n = 0; n < kN; ++n) {
    for (int64_t c = 0; c < kC; ++c) {
      for (int64_t h = 0; h < kH; ++h) {
        for (int64_t w = 0; w < kW; ++w) {
          const int64_t outer = (n * (kC / kBlock) + c / kBlock) * kH + h;
          ASSERT_EQ(offsets[i++], (outer * kW + w) * kBlock + c % kBlock);
        }
      }
    }
  }
}

TEST(PhysicalOffsets, DoublyTiledWeightsAreOIhw4i16o4i) {
  constexpr int64_t kO = 32, kI = 32, kH = 3, kW = 2;
  const auto offsets = PhysicalOffsets(Type({kO, kI, kH, kW}, "ABcd4b16a4b"));
  size_t at = 0;
  for (int64_t o = 0; o < kO; ++o) {
    for (int64_t i = 0; i < kI; ++i) {
      for (int64_t h = 0; h < kH; ++h) {
        for (int64_t w = 0; w < kW; ++w) {
          const int64_t outer =
              ((o / 16 * (kI / 16) + i / 16) * kH + h) * kW + w;
          const int64_t inner = (i % 16 / 4 * 16 + o % 16) * 4 + i % 4;
          ASSERT_EQ(offsets[at++], outer * 256 + inner);
        }
      }
    }
  }
}

TEST(TilesNest, IfEachStepDividesTheNext) {
  const auto nest = [](const char* a, const char* b) {
    return TilesNest(std::vector{Type({96, 32}, a), Type({96, 32}, b)});
  };
  EXPECT_TRUE(nest("", "ba"));
  EXPECT_TRUE(nest("", "Ab32a"));
  EXPECT_TRUE(nest("Ab48a", "Ab16a"));
  EXPECT_TRUE(nest("Ab48a", "aB32b"));
  EXPECT_TRUE(nest("AB16b32a", "AB8a16b4a"));
  EXPECT_FALSE(nest("Ab48a", "Ab32a"));
  EXPECT_FALSE(nest("Ab48a", "AB8a16b4a"));
}

TEST(SamePhysicalOrder, IgnoresExtentsOfOne) {
  EXPECT_TRUE(
      SamePhysicalOrder(Type({2, 1, 3, 4}, "acbd"), Type({2, 1, 3, 4}, "")));
  EXPECT_TRUE(SamePhysicalOrder(Type({2, 16, 3, 1}, "aBcd16b"),
                                Type({2, 16, 3, 1}, "acdb")));
  EXPECT_FALSE(
      SamePhysicalOrder(Type({2, 5, 3, 4}, "acbd"), Type({2, 5, 3, 4}, "")));
}

TEST(TransposedLayout, StoresTheResultLikeTheOperand) {
  const std::vector<int64_t> permutation = {2, 0, 3, 1};
  const Shape shape = {2, 16, 3, 4}, transposed = {3, 2, 4, 16};
  for (const char* text : {"", "acbd", "dcba", "aBcd4b", "cdBa8b"}) {
    const TensorType type = Type(shape, text);
    const TensorType result{type.dtype, transposed,
                            TransposedLayout(type.layout, permutation)};
    const std::vector<int64_t> from = PhysicalOffsets(type);
    const std::vector<int64_t> to = PhysicalOffsets(result);
    for (int64_t a = 0; a < 2; ++a) {
      for (int64_t b = 0; b < 16; ++b) {
        for (int64_t c = 0; c < 3; ++c) {
          for (int64_t d = 0; d < 4; ++d) {
            EXPECT_EQ(from[((a * 16 + b) * 3 + c) * 4 + d],
                      to[((c * 2 + a) * 4 + d) * 16 + b]);
          }
        }
      }
    }
  }
}

TEST(PhysicalOffsets, AreAPermutationThatTheAxesDescribe) {
  for (const char* text :
       {"", "dcba", "acdb", "aBcd8b", "ABcd8b8a", "bAcd4a", "ABcd2b4a4b"}) {
    const TensorType type = Type({8, 16, 2, 3}, text);
    std::vector<int64_t> offsets = PhysicalOffsets(type);
    const auto axes = PhysicalAxes(type);
    int64_t volume = 1;
    for (const PhysicalAxis& axis : axes) volume *= axis.extent;
    EXPECT_EQ(volume, type.num_elements()) << text;
    EXPECT_EQ(axes.back().stride, 1) << text;
    std::sort(offsets.begin(), offsets.end());
    for (size_t i = 0; i < offsets.size(); ++i) {
      ASSERT_EQ(offsets[i], static_cast<int64_t>(i)) << text;
    }
  }
}

TEST(PhysicalAxes, RejectATileThatDoesNotDivide) {
  EXPECT_THROW(PhysicalAxes(Type({1, 20, 2, 2}, "aBcd16b")), Error);
  EXPECT_THROW(PhysicalAxes(Type({4, 4}, "acb")), Error);
}

}  // namespace
}  // namespace fusor::ir
