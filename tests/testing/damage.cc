#include "tests/testing/damage.h"

#include <gtest/gtest.h>

#include "ir/support/philox.h"

namespace fusor::test {
namespace {

// Limits of the number types that readers parse.
constexpr const char* kNumbers[] = {
    "-1",      "0",           "1e999", "nan",
    "1048577", "2147483648",  "0.5",   "4294967296",
    "-2e-308", "99999999999", "1e18",  "9223372036854775807",
};

void Edit(std::string& text, uint64_t seed, uint32_t edit) {
  const auto r = Philox({1, edit, 0, 0}, seed);
  const auto more = Philox({2, edit, 0, 0}, seed);
  const size_t at = r[0] % text.size();
  const std::string piece = text.substr(r[2] % text.size(), r[3] % 30);
  switch (r[1] % 8) {
    case 0:
      text[at] = static_cast<char>(r[2]);
      break;
    case 1:
      text[at] = static_cast<char>(text[at] ^ (1 << r[2] % 8));
      break;
    case 2:
      text.erase(at, 1 + r[2] % 20);
      break;
    case 3:
      text.insert(at, piece);
      break;
    case 4:
      text.insert(at, 1, "(){}[]=,:@<>-\"%/ \n\\."[r[2] % 20]);
      break;
    case 5:
      if (r[2] % 8 == 0) text.resize(at);
      break;
    default: {
      // Replaces the next number.
      const size_t begin = text.find_first_of("0123456789", at);
      if (begin == std::string::npos) break;
      const size_t end = text.find_first_not_of("0123456789.", begin);
      text.replace(begin, std::min(end, text.size()) - begin,
                   kNumbers[more[0] % std::size(kNumbers)]);
    }
  }
}

}  // namespace

std::string Damage(const std::string& whole, uint64_t seed) {
  std::string text = whole;
  const uint32_t edits = 1 + Philox({0, 0, 0, 0}, seed)[0] % 4;
  for (uint32_t i = 0; i < edits && !text.empty(); ++i) Edit(text, seed, i);
  return text;
}

DamageCounts ReadDamaged(const std::string& whole, int count, ErrorCode code,
                         const std::function<void(const std::string&)>& read) {
  const auto first =
      static_cast<uint64_t>(testing::UnitTest::GetInstance()->random_seed());
  DamageCounts counts;
  for (int i = 0; i < count; ++i) {
    const uint64_t seed = first << 32 | static_cast<uint32_t>(i);
    const std::string damaged = Damage(whole, seed);
    try {
      read(damaged);
      ++counts.accepted;
    } catch (const Error& error) {
      ++counts.rejected;
      const std::string message = error.what();
      EXPECT_EQ(error.code(), code) << message << " of seed " << seed;
      EXPECT_EQ(message.find('\n'), std::string::npos)
          << message << " of seed " << seed;
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what() << " of seed " << seed;
    }
  }
  return counts;
}

}  // namespace fusor::test
