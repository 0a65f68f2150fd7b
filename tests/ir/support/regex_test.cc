#include "ir/support/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/support/error.h"

namespace fusor {
namespace {

using ::testing::ElementsAre;
using ::testing::Optional;

TEST(Regex, SearchesAPartAndMatchesTheWhole) {
  const Regex regex(R"((\d+)n(\d+)g(x)?)");
  EXPECT_TRUE(regex.Found("of 4n8g, "));
  EXPECT_FALSE(regex.Found("4n g"));
  EXPECT_THAT(regex.Search("of 4n8g, "),
              Optional(ElementsAre("4n8g", "4", "8", "")));
  EXPECT_EQ(regex.Match("of 4n8g"), std::nullopt);
  EXPECT_THAT(regex.Match("4n8gx"),
              Optional(ElementsAre("4n8gx", "4", "8", "x")));
}

TEST(Regex, RejectsOtherTexts) {
  try {
    Regex("a(", "pass filter");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_THAT(
        error.what(),
        ::testing::StartsWith("pass filter 'a(': not a regular expression"));
  }
}

}  // namespace
}  // namespace fusor
