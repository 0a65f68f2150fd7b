#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fusor {

// Joins the elements of `parts`, formatted by `print(part)`, with `separator`.
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

// Returns the candidate nearest to `name`, for "did you mean" messages. Ranks
// candidates by the edit distance to their best prefix (`--bach` is nearer to
// `--batch-size` than to `--arch`), then by the distance to the whole
// candidate. Swapping two adjacent letters is one edit. Returns "" if no
// candidate is within a third of the letters of `name`.
std::string NearestName(std::string_view name,
                        std::span<const std::string> candidates);

// Returns the end of a message that rejects `name`: "; did you mean X?", or all
// candidates if none is near: "; there are A, B, C".
std::string NameHint(std::string_view name,
                     std::span<const std::string> candidates);

// Escapes control characters, e.g. line breaks and terminal escapes in file
// names, so that `text` fits on one line.
std::string OneLine(std::string_view text);

// Returns the text in single quotes.
std::string Quoted(std::string_view text);

// Returns a view of bytes as text.
inline std::string_view AsText(std::span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Formats bytes as B, KiB, MiB or GiB: "12.3 MiB".
std::string ShowBytes(int64_t bytes);
// Formats a count, from a million on as M or G: "812", "1.23 G".
std::string ShowCount(int64_t count);

}  // namespace fusor
