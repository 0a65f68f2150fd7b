#pragma once

#include <gmock/gmock.h>

#include <string>

#include "ir/support/error.h"

namespace fusor::testing {

// Matches a function that throws a one-line data error with `a` and `b` in it.
inline auto DataError(const std::string& a, const std::string& b) {
  using ::testing::AllOf;
  using ::testing::HasSubstr;
  using ::testing::Property;
  const auto text = [](const char* what) { return std::string(what); };
  return ::testing::Throws<Error>(AllOf(
      Property(&Error::code, ErrorCode::kData),
      Property(
          &Error::what,
          ::testing::ResultOf(text, AllOf(HasSubstr(a), HasSubstr(b),
                                          ::testing::Not(HasSubstr("\n")))))));
}

}  // namespace fusor::testing
