#include "ir/support/regex.h"

#include <fmt/core.h>

#include <regex>

#include "ir/support/error.h"

namespace fusor {
namespace {

using Matches = std::match_results<std::string_view::const_iterator>;

Regex::Groups GroupsOf(const Matches& matches) {
  return {matches.begin(), matches.end()};
}

}  // namespace

struct Regex::Impl {
  std::regex regex;
};

Regex::Regex(const std::string& text, std::string_view what) try
    : impl_(std::make_shared<Impl>(std::regex(text))) {
} catch (const std::regex_error& error) {
  ThrowError(ErrorCode::kUsage,
             fmt::format("{} '{}': not a regular expression: {}", what, text,
                         error.what()));
}

bool Regex::Found(std::string_view text) const {
  return std::regex_search(text.begin(), text.end(), impl_->regex);
}

std::optional<Regex::Groups> Regex::Search(std::string_view text) const {
  Matches matches;
  if (!std::regex_search(text.begin(), text.end(), matches, impl_->regex)) {
    return std::nullopt;
  }
  return GroupsOf(matches);
}

std::optional<Regex::Groups> Regex::Match(std::string_view text) const {
  Matches matches;
  if (!std::regex_match(text.begin(), text.end(), matches, impl_->regex)) {
    return std::nullopt;
  }
  return GroupsOf(matches);
}

}  // namespace fusor
