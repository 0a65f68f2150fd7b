#include "ir/support/host_memory.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

namespace fusor::runtime {
namespace {

namespace fs = std::filesystem;

constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();

// Returns the number after `key` at the start of a line.
std::optional<size_t> ReadField(const fs::path& file, const std::string& key) {
  std::ifstream in(file);
  std::string word;
  size_t value = 0;
  while (in >> word) {
    if (word == key && in >> value) return value;
    in.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

// Reads a file of one number; nullopt if it is absent or contains "max".
std::optional<size_t> ReadNumber(const fs::path& file) {
  std::ifstream in(file);
  size_t value = 0;
  if (in >> value) return value;
  return std::nullopt;
}

// Returns the bytes that one control group leaves; its file cache is
// reclaimable.
size_t GroupRoom(const fs::path& group, const char* limit_file,
                 const char* usage_file, const char* cache_field) {
  const auto limit = ReadNumber(group / limit_file);
  if (!limit.has_value()) return kUnlimited;
  const size_t usage = ReadNumber(group / usage_file).value_or(0);
  const size_t cache =
      ReadField(group / "memory.stat", cache_field).value_or(0);
  const size_t held = usage - std::min(usage, cache);
  return *limit - std::min(*limit, held);
}

// Returns the minimum over the group at `path` below `top` and its ancestors.
template <typename Room>
size_t LeastRoom(const fs::path& top, const std::string& path, Room room) {
  size_t least = room(top);
  fs::path group = top;
  for (const fs::path& part : fs::path(path).relative_path()) {
    group /= part;
    least = std::min(least, room(group));
  }
  return least;
}

// /proc/self/cgroup: "0::/path" (version 2), "9:memory:/path" (version 1).
size_t ControlGroupRoom(const std::string& root) {
  std::ifstream in(root + "/proc/self/cgroup");
  size_t least = kUnlimited;
  for (std::string line; std::getline(in, line);) {
    const size_t path = line.find(":/");
    if (path == std::string::npos) continue;
    if (line.starts_with("0::")) {
      least = std::min(least,
                       LeastRoom(root + "/sys/fs/cgroup", line.substr(path + 1),
                                 [](const fs::path& group) {
                                   return GroupRoom(group, "memory.max",
                                                    "memory.current",
                                                    "inactive_file");
                                 }));
    } else if (line.find(":memory:") != std::string::npos) {
      least = std::min(
          least, LeastRoom(root + "/sys/fs/cgroup/memory",
                           line.substr(path + 1), [](const fs::path& group) {
                             return GroupRoom(group, "memory.limit_in_bytes",
                                              "memory.usage_in_bytes",
                                              "total_inactive_file");
                           }));
    }
  }
  return least;
}

// Returns a limit of /proc/self/limits minus a size of /proc/self/status.
size_t LimitRoom(const std::string& root, const std::string& limit,
                 const std::string& size) {
  std::ifstream in(root + "/proc/self/limits");
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(limit)) continue;
    std::istringstream words(line.substr(limit.size()));
    size_t bytes = 0;
    if (!(words >> bytes)) return kUnlimited;  // "unlimited"
    const size_t used =
        ReadField(root + "/proc/self/status", size).value_or(0) * 1024;
    return bytes - std::min(bytes, used);
  }
  return kUnlimited;
}

}  // namespace

size_t FreeHostBytes(const std::string& root) {
  const auto available = ReadField(root + "/proc/meminfo", "MemAvailable:");
  const size_t machine = available.has_value() ? *available * 1024 : kUnlimited;
  return std::min({machine, ControlGroupRoom(root),
                   LimitRoom(root, "Max address space", "VmSize:"),
                   LimitRoom(root, "Max data size", "VmData:")});
}

size_t ResidentHostBytes(const std::string& root) {
  return ReadField(root + "/proc/self/status", "VmRSS:").value_or(0) * 1024;
}

}  // namespace fusor::runtime
