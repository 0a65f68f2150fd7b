#pragma once

#include <fmt/core.h>

#include <regex>
#include <string>
#include <string_view>

#include "ir/support/error.h"

namespace fusor {

// Parses an ECMAScript regular expression. Throws kUsage if `text` is not one;
// `what` names it in the message.
inline std::regex ParseRegex(std::string_view what, const std::string& text) {
  try {
    return std::regex(text);
  } catch (const std::regex_error& error) {
    ThrowError(ErrorCode::kUsage,
               fmt::format("{} '{}': not a regular expression: {}", what, text,
                           error.what()));
  }
}

}  // namespace fusor
