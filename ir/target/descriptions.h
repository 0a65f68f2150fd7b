#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fusor::ir {

// A file of ir/target/targets or ir/target/clusters, embedded at build time.
struct Description {
  std::string_view name;  // the file's name without .textproto
  std::string_view text;
};

// Return the embedded files, sorted by name.
std::span<const Description> TargetDescriptions();
std::span<const Description> ClusterDescriptions();

std::vector<std::string> NamesOf(std::span<const Description> descriptions);

// Returns the description of that name. Throws kUsage with the nearest name if
// unknown. `kind` is for the message, e.g. "target".
const Description& FindDescription(std::span<const Description> descriptions,
                                   std::string_view kind,
                                   std::string_view name);

}  // namespace fusor::ir
