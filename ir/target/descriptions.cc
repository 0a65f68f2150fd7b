#include "ir/target/descriptions.h"

#include "ir/support/error.h"
#include "ir/support/str.h"

namespace fusor::ir {

std::vector<std::string> NamesOf(std::span<const Description> descriptions) {
  std::vector<std::string> names;
  for (const Description& description : descriptions) {
    names.emplace_back(description.name);
  }
  return names;
}

const Description& FindDescription(std::span<const Description> descriptions,
                                   std::string_view kind,
                                   std::string_view name) {
  for (const Description& description : descriptions) {
    if (description.name == name) return description;
  }
  const std::vector<std::string> names = NamesOf(descriptions);
  const std::string nearest = NearestName(name, names);
  ThrowError(
      ErrorCode::kUsage,
      fmt::format("unknown {} {}{}; there are {}", kind, name,
                  nearest.empty() ? "" : "; did you mean " + nearest + "?",
                  Join(names, ", ", [](const std::string& n) { return n; })));
}

}  // namespace fusor::ir
