#include <gtest/gtest.h>

#include <string>

#include "ir/support/hash.h"

namespace fusor::runtime {
namespace {

// Expects the values of RFC 3720, B.4.
TEST(Crc32c, IsThatOfTheStandard) {
  EXPECT_EQ(Crc32c(""), 0u);
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
}

TEST(Crc32c, PiecesAreSummedOneAfterTheOther) {
  const std::string text = "one piece and another";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    EXPECT_EQ(Crc32c(text.substr(cut), Crc32c(text.substr(0, cut))),
              Crc32c(text));
  }
}

}  // namespace
}  // namespace fusor::runtime
