#include <algorithm>
#include <cctype>
#include <filesystem>
#include <ostream>

#include "ir/support/error.h"
#include "ir/support/file.h"
#include "ir/support/hash.h"
#include "tools/inspect/dump/dumper.h"

namespace fusor::inspect {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxName = 120;

bool HoldsDump(const fs::path& folder) {
  return fs::exists(folder / "manifest.json");
}

}  // namespace

DumpSink::~DumpSink() = default;

FolderSink::FolderSink(std::string folder) : folder_(std::move(folder)) {
  std::error_code error;
  fs::create_directories(folder_, error);
  FUSOR_CHECK(!error, kUsage, "dump folder {}: {}", folder_, error.message());
  FUSOR_CHECK(!HoldsDump(folder_), kUsage,
              "dump folder {}: contains the dump of another run; remove it or "
              "choose another folder",
              folder_);
  // Fail now rather than at the first write.
  const std::string probe = (fs::path(folder_) / "probe").string();
  WriteFileAtomically(probe, "", ErrorCode::kUsage);
  fs::remove(probe, error);
}

void FolderSink::Write(const std::string& path, std::string_view bytes) {
  const fs::path file = fs::path(folder_) / path;
  std::error_code error;
  fs::create_directories(file.parent_path(), error);
  FUSOR_CHECK(!error, kUsage, "dump folder {}: {}", file.parent_path().string(),
              error.message());
  WriteFileAtomically(file.string(), bytes, ErrorCode::kUsage);
}

void StreamSink::Write(const std::string& path, std::string_view bytes) {
  stream_ << "// " << prefix_ << path << "\n" << bytes;
  if (!bytes.empty() && bytes.back() != '\n') stream_ << '\n';
  stream_ << std::flush;
}

std::string FileName(std::string_view name) {
  std::string out(name);
  std::replace_if(
      out.begin(), out.end(),
      [](unsigned char c) {
        return std::isalnum(c) == 0 && c != '.' && c != '_' && c != '-';
      },
      '_');
  if (out.size() <= kMaxName) return out;
  return fmt::format("{}~{:016x}", out.substr(0, kMaxName - 17),
                     HashBytes(name));
}

}  // namespace fusor::inspect
