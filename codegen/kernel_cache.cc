#include "codegen/kernel_cache.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <tuple>
#include <vector>

#include "ir/support/error.h"
#include "ir/support/file.h"
#include "ir/support/hash.h"

namespace fusor::codegen {
namespace {

namespace fs = std::filesystem;

// File: magic, key length, key, binary length, binary, hash of the preceding.
constexpr std::string_view kMagic = "fusorkc1";
constexpr std::string_view kSuffix = ".kernel";

void PutNumber(std::string& out, uint64_t number) {
  out.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

std::string Encode(std::string_view key, std::string_view binary) {
  std::string out(kMagic);
  PutNumber(out, key.size());
  out += key;
  PutNumber(out, binary.size());
  out += binary;
  PutNumber(out, HashBytes(out));
  return out;
}

// Consumes bytes from the front; returns false if there are too few.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  bool Take(uint64_t count, std::string_view& part) {
    if (count > rest_.size()) return false;
    part = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return true;
  }
  bool TakeNumber(uint64_t& number) {
    std::string_view part;
    if (!Take(sizeof(number), part)) return false;
    std::memcpy(&number, part.data(), sizeof(number));
    return true;
  }
  size_t left() const { return rest_.size(); }

 private:
  std::string_view rest_;
};

std::optional<std::string> Decode(std::string_view bytes,
                                  std::string_view wanted) {
  Reader reader(bytes);
  std::string_view magic, key, binary;
  uint64_t key_size = 0, binary_size = 0, hash = 0;
  const bool whole =
      reader.Take(kMagic.size(), magic) && reader.TakeNumber(key_size) &&
      reader.Take(key_size, key) && reader.TakeNumber(binary_size) &&
      reader.Take(binary_size, binary) && reader.TakeNumber(hash) &&
      reader.left() == 0;
  if (!whole || magic != kMagic || key != wanted ||
      hash != HashBytes(bytes.substr(0, bytes.size() - sizeof(hash)))) {
    return std::nullopt;
  }
  return std::string(binary);
}

bool IsPrivate(const std::string& folder) {
  struct stat status = {};
  return stat(folder.c_str(), &status) == 0 && status.st_uid == geteuid() &&
         (status.st_mode & S_IWOTH) == 0;
}

}  // namespace

KernelCache::KernelCache(std::string folder, int64_t capacity_bytes)
    : folder_(std::move(folder)), capacity_bytes_(capacity_bytes) {}

std::string KernelCache::PathOf(std::string_view key) const {
  return fmt::format("{}/{:016x}{}", folder_, HashBytes(key), kSuffix);
}

std::optional<std::string> KernelCache::Find(std::string_view key) const {
  const std::string path = PathOf(key);
  std::error_code error;
  if (!fs::is_regular_file(path, error) || !IsPrivate(folder_)) {
    return std::nullopt;
  }
  std::vector<uint8_t> bytes;
  try {
    ReadFile(path, ErrorCode::kInternal, bytes);
  } catch (const Error&) {
    return std::nullopt;  // concurrently deleted or made unreadable
  }
  auto binary =
      Decode({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, key);
  if (binary.has_value()) {
    fs::last_write_time(path, fs::file_time_type::clock::now(), error);
  }
  return binary;
}

std::string KernelCache::Store(std::string_view key,
                               std::string_view binary) const {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) {
    return fmt::format("cannot create {}: {}", folder_, error.message());
  }
  try {
    WriteFileAtomically(PathOf(key), Encode(key, binary), ErrorCode::kInternal);
  } catch (const Error& e) {
    return e.what();  // e.g. disk full, or a read-only folder
  }
  return "";
}

void KernelCache::Trim() const {
  std::vector<std::tuple<fs::file_time_type, std::string, int64_t>> files;
  int64_t total = 0;
  std::error_code error;
  for (fs::directory_iterator it(folder_, error), end; !error && it != end;
       it.increment(error)) {
    std::error_code gone;  // another process may delete files concurrently
    if (it->path().extension() != kSuffix) continue;
    const auto bytes = static_cast<int64_t>(it->file_size(gone));
    const auto used = it->last_write_time(gone);
    if (gone) continue;
    total += bytes;
    files.emplace_back(used, it->path().string(), bytes);
  }
  std::sort(files.begin(), files.end());
  for (const auto& [used, path, bytes] : files) {
    if (total <= capacity_bytes_) return;
    fs::remove(path, error);
    total -= bytes;
  }
}

}  // namespace fusor::codegen
