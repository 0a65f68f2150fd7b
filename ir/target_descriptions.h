#pragma once

#include <span>
#include <string_view>

namespace fusor::ir {

// A file of ir/targets, embedded by the build.
struct TargetDescription {
  std::string_view name;  // the file's name without .textproto
  std::string_view text;
};

// Sorted by name.
std::span<const TargetDescription> TargetDescriptions();

}  // namespace fusor::ir
