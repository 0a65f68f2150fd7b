#include "runtime/cpu/cpu_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>

#include "ir/support/error.h"

namespace fusor::cpu {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();

// The number after `key` at the start of a line.
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

// A file of one number; nullopt when it says "max" or is not there.
std::optional<size_t> ReadNumber(const fs::path& file) {
  std::ifstream in(file);
  size_t value = 0;
  if (in >> value) return value;
  return std::nullopt;
}

// What one control group leaves: its file cache can be taken back.
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

// The group at `path` below `top` and all groups around it.
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

class MappedMemory : public runtime::Memory {
 public:
  MappedMemory(void* mapping, size_t mapped, void* data, size_t bytes)
      : mapping_(mapping), mapped_(mapped), data_(data), bytes_(bytes) {}
  ~MappedMemory() override { munmap(mapping_, mapped_); }
  void* data() override { return data_; }
  size_t bytes() const override { return bytes_; }

 private:
  void* mapping_;
  size_t mapped_;
  void* data_;
  size_t bytes_;
};

void TouchPages(char* data, size_t bytes, int threads) {
  const auto pages = static_cast<int64_t>((bytes + kPage - 1) / kPage);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t page = 0; page < pages; ++page) {
    static_cast<volatile char*>(data)[page * kPage] = 0;
  }
}

}  // namespace

size_t FreeBytes(const std::string& root) {
  const auto available = ReadField(root + "/proc/meminfo", "MemAvailable:");
  const size_t machine = available.has_value() ? *available * 1024 : kUnlimited;
  return std::min(machine, ControlGroupRoom(root));
}

std::unique_ptr<runtime::Memory> AllocateMemory(size_t bytes, int threads) {
  // Asked before it is touched: else the kernel would kill the process.
  const size_t free = FreeBytes();
  FUSOR_CHECK(bytes <= free, kOutOfMemory,
              "CPU memory: asked for {} bytes ({} MiB), {} ({} MiB) are free",
              bytes, bytes >> 20, free, free >> 20);
  const bool huge = bytes >= kHugePage;
  const size_t mapped = bytes + (huge ? kHugePage : kPage);
  void* mapping = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  FUSOR_CHECK(mapping != MAP_FAILED, kOutOfMemory,
              "CPU memory: the system refuses {} bytes ({} are free)", bytes,
              free);
  const size_t alignment = huge ? kHugePage : kPage;
  const auto address = reinterpret_cast<uintptr_t>(mapping);
  auto* data = static_cast<char*>(mapping) +
               ((alignment - address % alignment) % alignment);
  auto memory = std::make_unique<MappedMemory>(mapping, mapped, data, bytes);
  if (huge) madvise(data, bytes, MADV_HUGEPAGE);  // advice: may be ignored
  TouchPages(data, bytes, threads);
  return memory;
}

}  // namespace fusor::cpu
