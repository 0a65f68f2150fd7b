#include "ir/location.h"

#include <charconv>
#include <mutex>
#include <set>

#include "ir/support/error.h"

namespace fusor::ir {
namespace {

// Returns the root folder of the source tree: the path of this file, as passed
// to the compiler, without "ir/location.cc". All files of a build share it.
std::string_view TreeRoot() {
  const std::string_view self = std::source_location::current().file_name();
  return self.substr(0,
                     self.size() - std::string_view("ir/location.cc").size());
}

std::string_view ShortPath(std::string_view path) {
  const std::string_view root = TreeRoot();
  const std::string_view below =
      path.starts_with(root) ? path.substr(root.size()) : "/";
  if (!below.starts_with('/') && !below.starts_with("..")) return below;
  const size_t name = path.rfind('/');
  if (name == 0 || name == std::string_view::npos) {
    return path.substr(name + 1);  // npos + 1 is 0
  }
  return path.substr(path.rfind('/', name - 1) + 1);
}

}  // namespace

SourceLine::SourceLine(std::string_view file, int line) {
  FUSOR_CHECK(!file.empty() && line > 0, kGraph,
              "source line {}:{}: expected a file and a number from 1", file,
              line);
  // Never freed: nodes, plans and errors point into it until the process ends.
  static std::mutex mutex;
  static auto& entries = *new std::set<Entry>;
  const std::lock_guard lock(mutex);
  entry_ = &*entries.emplace(std::string(file), line).first;
}

std::string ToString(SourceLine line) {
  return line.empty() ? "" : fmt::format("{}:{}", line.file(), line.line());
}

SourceLine ParseSourceLine(std::string_view text) {
  if (text.empty()) return {};
  const size_t colon = text.rfind(':');
  int line = 0;
  if (colon != std::string_view::npos) {
    const char* end = text.data() + text.size();
    const auto result = std::from_chars(text.data() + colon + 1, end, line);
    if (result.ec != std::errc() || result.ptr != end) line = 0;
  }
  FUSOR_CHECK(line > 0 && colon > 0, kGraph,
              "source line \"{}\": expected \"FILE:LINE\"", text);
  return {text.substr(0, colon), line};
}

SourceLine Where::line() const {
  return {ShortPath(place_.file_name()), static_cast<int>(place_.line())};
}

std::string ToString(const Location& location) {
  if (location.source.empty()) return location.path;
  if (location.path.empty()) return ToString(location.source);
  return fmt::format("{} ({})", location.path, ToString(location.source));
}

std::string AtLocation(const Location& location) {
  return location.empty() ? "" : " at " + ToString(location);
}

}  // namespace fusor::ir
