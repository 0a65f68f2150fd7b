#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fusor {

// The elements of `parts`, printed by `print(part)`, with `separator` between.
template <typename Range, typename Print>
std::string Join(const Range& parts, std::string_view separator, Print print) {
  std::string out;
  bool first = true;
  for (const auto& part : parts) {
    if (!first) out += separator;
    first = false;
    out += print(part);
  }
  return out;
}

// The candidate nearest to `name`, for "did you mean" messages: the one with
// the beginning that takes the fewest edits (`--bach` is nearer to
// `--batch-size` than to `--arch`), then the fewest in all. Empty when none is
// near: a third of its letters may be wrong. Two neighbours swapped are one
// edit.
std::string NearestName(std::string_view name,
                        std::span<const std::string> candidates);

// For the end of a message that refuses `name`: "; did you mean X?", or all
// candidates when none is near: "; there are A, B, C".
std::string NameHint(std::string_view name,
                     std::span<const std::string> candidates);

// `text` in one line: names in files may have line breaks and terminals'
// escapes.
std::string OneLine(std::string_view text);

}  // namespace fusor
