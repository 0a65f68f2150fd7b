#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fusor::ir {

// A file of ir/target/targets or ir/target/clusters, embedded by the build.
struct Description {
  std::string_view name;  // the file's name without .textproto
  std::string_view text;
};

// Sorted by name.
std::span<const Description> TargetDescriptions();
std::span<const Description> ClusterDescriptions();

std::vector<std::string> NamesOf(std::span<const Description> descriptions);

// The one of that name; throws kUsage with the nearest name. `kind`: what they
// are, "target".
const Description& FindDescription(std::span<const Description> descriptions,
                                   std::string_view kind,
                                   std::string_view name);

}  // namespace fusor::ir
