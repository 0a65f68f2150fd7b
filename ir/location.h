#pragma once

#include <source_location>
#include <string>
#include <string_view>
#include <utility>

namespace fusor::ir {

// A line of the code that built a graph. One pointer, to a copy that is kept
// for the life of the process; equal lines are one copy. Thread-safe.
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
// Reads it back; empty for "". Throws kGraph on anything else.
SourceLine ParseSourceLine(std::string_view text);

// The place of a call. As a function's last parameter, `Where at = {}`, it is
// the place where that function is called.
class Where {
 public:
  Where(std::source_location place = std::source_location::current())
      : place_(place) {}

  // Without what belongs to the machine: below the root of fusor's tree the
  // path from there, "models/resnet.cc", else the last two names of the path.
  SourceLine line() const;

 private:
  std::source_location place_;
};

// Where in the model a node comes from.
struct Location {
  Location() = default;
  Location(std::string path_, SourceLine source_ = {})
      : path(std::move(path_)), source(source_) {}
  Location(const char* path_) : path(path_) {}

  std::string path;   // of the layer, "layer3.1.bn2"; may be empty
  SourceLine source;  // the line of the model's code that made it, where known

  bool empty() const { return path.empty() && source.empty(); }
  bool operator==(const Location&) const = default;
};

// For people: "layer3.1.bn2 (models/resnet.cc:52)", either part alone, or "".
std::string ToString(const Location& location);
// The same after " at "; "" for none.
std::string AtLocation(const Location& location);
}  // namespace fusor::ir
