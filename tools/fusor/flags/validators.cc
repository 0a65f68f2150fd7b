#include "tools/fusor/flags/validators.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "ir/support/str.h"

namespace fusor::tools {
namespace {

template <typename T>
bool Parse(const std::string& text, T& value) {
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  return result.ec == std::errc() && result.ptr == end;
}

template <typename T>
CLI::Validator InRange(const std::string& range, T low, T high) {
  const auto check = [=](std::string& text) {
    T value = 0;
    // NaN compares false and is rejected.
    if (Parse(text, value) && value >= low && value <= high) {
      return std::string();
    }
    return fmt::format("expected {}, got {}", range, text);
  };
  return {check, ""};
}

}  // namespace

CLI::Validator WholeNumber(int64_t low, int64_t high) {
  return InRange(fmt::format("a whole number from {} to {}", low, high), low,
                 high);
}

CLI::Validator WholeNumber(int64_t low) {
  return InRange(fmt::format("a whole number of at least {}", low), low,
                 std::numeric_limits<int64_t>::max());
}

CLI::Validator Number(double low, double high) {
  return InRange(fmt::format("a number from {} to {}", low, high), low, high);
}

CLI::Validator Number(double low) {
  return InRange(fmt::format("a number of at least {}", low), low,
                 std::numeric_limits<double>::max());
}

CLI::Validator OneOf(std::vector<std::string> words) {
  const auto check = [words = std::move(words)](std::string& text) {
    if (std::find(words.begin(), words.end(), text) != words.end()) {
      return std::string();
    }
    const std::string nearest = NearestName(text, words);
    return fmt::format(
        "expected {}, got {}{}",
        Join(words, ", ", [](const auto& w) { return w; }), text,
        nearest.empty() ? "" : ", did you mean " + nearest + "?");
  };
  return {check, ""};
}

}  // namespace fusor::tools
