#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fusor {

// An ECMAScript regular expression. Hides <regex>, which takes seconds to
// compile. Copies share the expression.
class Regex {
 public:
  // The match and its groups. A group that is not part of the match is "".
  using Groups = std::vector<std::string>;

  // Throws kUsage if `text` is no regular expression; `what` names it in the
  // message.
  explicit Regex(const std::string& text, std::string_view what = "pattern");

  // Whether a part of the text matches.
  bool Found(std::string_view text) const;
  // Returns the first part of the text that matches.
  std::optional<Groups> Search(std::string_view text) const;
  // Matches the whole text.
  std::optional<Groups> Match(std::string_view text) const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace fusor
