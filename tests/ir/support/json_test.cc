#include "ir/support/json.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace fusor {
namespace {

using nlohmann::json;

TEST(Json, IntegersOfTheTypeAreRead) {
  EXPECT_EQ(JsonInteger<int64_t>(json::parse("-9223372036854775808")),
            std::numeric_limits<int64_t>::min());
  EXPECT_EQ(JsonInteger<uint64_t>(json::parse("18446744073709551615")),
            std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(JsonInteger<int>(json::parse("7")), 7);
}

TEST(Json, EverythingElseIsRejected) {
  for (const char* text : {"1.5", "1.0", "1e30", "-1e300", "true", "null",
                           "\"1\"", "[1]", "{}", "9223372036854775808"}) {
    EXPECT_THROW(JsonInteger<int64_t>(json::parse(text)), std::out_of_range)
        << text;
  }
  EXPECT_THROW(JsonInteger<uint64_t>(json::parse("-1")), std::out_of_range);
  EXPECT_THROW(JsonInteger<uint32_t>(json::parse("4294967296")),
               std::out_of_range);
}

}  // namespace
}  // namespace fusor
