#pragma once

#include <source_location>
#include <string>
#include <string_view>
#include <utility>

namespace fusor::ir {

// A line of the code that built a graph: one pointer to an interned entry that
// is never freed. Thread-safe.
class SourceLine {
 public:
  SourceLine() = default;  // unknown
  // `line` counts from 1.
  SourceLine(std::string_view file, int line);

  bool empty() const { return entry_ == nullptr; }
  // REQUIRES: !empty().
  const std::string& file() const { return entry_->first; }
  int line() const { return entry_->second; }

  bool operator==(const SourceLine&) const = default;

 private:
  using Entry = std::pair<std::string, int>;
  const Entry* entry_ = nullptr;
};

// "models/resnet.cc:52"; "" when unknown.
std::string ToString(SourceLine line);
// Parses ToString's output; "" is unknown. Throws kGraph on anything else.
SourceLine ParseSourceLine(std::string_view text);

// Source position of a call. As the last parameter, `Where at = {}`, it is the
// position of the call to that function.
class Where {
 public:
  Where(std::source_location place = std::source_location::current())
      : place_(place) {}

  // Returns the path relative to the root of fusor's tree, "models/resnet.cc",
  // or else its last two components, since the rest depends on the machine.
  SourceLine line() const;

 private:
  std::source_location place_;
};

// A node's origin in the model.
struct Location {
  Location() = default;
  Location(std::string path_, SourceLine source_ = {})
      : path(std::move(path_)), source(source_) {}
  Location(const char* path_) : path(path_) {}

  std::string path;   // layer path, "layer3.1.bn2"; may be empty
  SourceLine source;  // line of the model's code; may be unknown

  bool empty() const { return path.empty() && source.empty(); }
  bool operator==(const Location&) const = default;
};

// For messages: "layer3.1.bn2 (models/resnet.cc:52)", either part alone, or "".
std::string ToString(const Location& location);
// Returns " at " and ToString(location); "" for an empty location.
std::string AtLocation(const Location& location);
}  // namespace fusor::ir
