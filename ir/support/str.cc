#include "ir/support/str.h"

#include <fmt/core.h>

#include <algorithm>
#include <compare>
#include <optional>
#include <utility>
#include <vector>

namespace fusor {
namespace {

struct Distance {
  size_t to_beginning;  // minimum over the candidate's prefixes
  size_t to_whole;

  auto operator<=>(const Distance&) const = default;
};

// Computes Damerau's distances (swapping two adjacent letters is one edit) from
// `name` to `candidate` and to its prefixes.
Distance EditDistance(std::string_view name, std::string_view candidate) {
  std::vector<size_t> before, last, row(candidate.size() + 1);
  for (size_t j = 0; j <= candidate.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= name.size(); ++i) {
    before = std::move(last);
    last = row;
    row[0] = i;
    for (size_t j = 1; j <= candidate.size(); ++j) {
      const bool same = name[i - 1] == candidate[j - 1];
      row[j] =
          std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
      if (i > 1 && j > 1 && name[i - 1] == candidate[j - 2] &&
          name[i - 2] == candidate[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
  }
  return {*std::min_element(row.begin(), row.end()), row.back()};
}

}  // namespace

std::string NearestName(std::string_view name,
                        std::span<const std::string> candidates) {
  const size_t letters =
      std::count_if(name.begin(), name.end(), [](char c) { return c != '-'; });
  const size_t tolerated = std::max<size_t>(letters / 3, letters > 1 ? 1 : 0);
  std::optional<Distance> least;
  std::string best;
  for (const std::string& candidate : candidates) {
    const Distance distance = EditDistance(name, candidate);
    const bool near =
        distance.to_whole <= tolerated || distance.to_beginning <= letters / 3;
    if (near && (!least || distance < *least)) {
      least = distance;
      best = candidate;
    }
  }
  return best;
}

std::string NameHint(std::string_view name,
                     std::span<const std::string> candidates) {
  const std::string nearest = NearestName(name, candidates);
  if (!nearest.empty()) return "; did you mean " + nearest + "?";
  return "; there are " +
         Join(candidates, ", ", [](const auto& n) { return n; });
}

std::string OneLine(std::string_view text) {
  std::string line;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool control = byte < 0x20 || byte == 0x7f;
    line += control ? fmt::format("\\x{:02x}", byte) : std::string(1, c);
  }
  return line;
}

std::string Quoted(std::string_view text) { return fmt::format("'{}'", text); }

std::string ShowBytes(int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes < 1 << 10) return fmt::format("{} B", bytes);
  if (bytes < 1 << 20) return fmt::format("{:.1f} KiB", value / (1 << 10));
  if (bytes < int64_t{10} << 30) {
    return fmt::format("{:.1f} MiB", value / (1 << 20));
  }
  return fmt::format("{:.2f} GiB", value / (1 << 30));
}

std::string ShowCount(int64_t count) {
  const auto value = static_cast<double>(count);
  if (count < 1'000'000) return std::to_string(count);
  if (count < 1'000'000'000) return fmt::format("{:.2f} M", value / 1e6);
  return fmt::format("{:.2f} G", value / 1e9);
}

}  // namespace fusor
