#include "tests/testing/graph_text.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include "ir/support/error.h"

namespace fusor::test {
namespace {

constexpr std::string_view kNeg =
    "graph g { %x = data : f32[2] %y = neg(%x) : f32[2] return %y }";
constexpr std::string_view kNegOtherNames =
    "graph h { %a = data : f32[2] %b = neg(%a) : f32[2] return %b }";
constexpr std::string_view kAbs =
    "graph g { %x = data : f32[2] %y = abs(%x) : f32[2] return %y }";

TEST(GraphText, IgnoresNamesUnlessAskedToCompareThem) {
  ExpectSameGraph(kNegOtherNames, *ParseOrDie(kNeg));
  ExpectSameGraph(kNeg, *ParseOrDie(kNeg), Names::kCompare);
  EXPECT_NONFATAL_FAILURE(
      ExpectSameGraph(kNegOtherNames, *ParseOrDie(kNeg), Names::kCompare),
      "graph h {");
}

TEST(GraphText, AMismatchNamesTheFirstDifferentLine) {
  EXPECT_NONFATAL_FAILURE(ExpectSameGraph(kNeg, *ParseOrDie(kAbs)),
                          "first in line 3:\n  "
                          "  %y = neg(%x) : f32[2]\n  "
                          "  %y = abs(%x) : f32[2]\n");
}

TEST(GraphText, TextThatDoesNotParseFailsTheTestAndThrows) {
  EXPECT_NONFATAL_FAILURE(EXPECT_THROW(ParseOrDie("graph {"), Error),
                          "graph text:1:7: expected the graph's name");
}

}  // namespace
}  // namespace fusor::test
