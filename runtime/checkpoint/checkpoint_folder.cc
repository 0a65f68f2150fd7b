#include "runtime/checkpoint/checkpoint_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>

#include "ir/support/error.h"
#include "ir/support/file.h"

namespace fusor::runtime {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kTemporary = ".tmp-";

struct Found {
  std::string path;
  int64_t sequence = -1;  // -1: corrupt manifest
  std::string damage;
};

// Returns the newest first, preceded by those of unknown age (corrupt).
std::vector<Found> FindCheckpoints(const std::string& path) {
  std::vector<Found> found;
  for (const std::string& name : ListCheckpoints(path)) {
    Found one{path + "/" + name, -1, ""};
    try {
      one.sequence = ReadCheckpointHeader(one.path).sequence;
    } catch (const Error& e) {
      one.damage = e.what();
    }
    found.push_back(std::move(one));
  }
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
    const bool damaged_a = a.sequence < 0;
    const bool damaged_b = b.sequence < 0;
    if (damaged_a != damaged_b) return damaged_a;
    return damaged_a ? a.path > b.path : a.sequence > b.sequence;
  });
  return found;
}

}  // namespace

CheckpointFolder::CheckpointFolder(const std::string& path) : path_(path) {
  std::error_code error;
  fs::create_directories(path, error);
  FUSOR_CHECK(!error, kCheckpoint, "cannot make the folder {}: {}", path,
              error.message());
  SyncFolder(fs::absolute(path).parent_path(), ErrorCode::kCheckpoint);
  const std::string lock = path + "/.lock";
  lock_ = open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  FUSOR_CHECK(lock_ >= 0, kCheckpoint, "cannot write {}: {}", lock,
              std::strerror(errno));
  // Without locks, as on some network file systems, no run is excluded.
  if (flock(lock_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    close(lock_);
    ThrowError(ErrorCode::kUsage,
               fmt::format("{}: another run saves its checkpoints here", path));
  }
  RemoveLeftovers();
  for (const Found& found : FindCheckpoints(path)) {
    next_sequence_ = std::max(next_sequence_, found.sequence + 1);
  }
}

CheckpointFolder::~CheckpointFolder() { close(lock_); }

void CheckpointFolder::RemoveLeftovers() const {
  std::vector<fs::path> leftovers;
  std::error_code ignored;  // leftovers are harmless
  for (const auto& entry : fs::directory_iterator(path_, ignored)) {
    const std::string name = entry.path().filename();
    if (name.starts_with(kPrefix) &&
        name.find(kTemporary) != std::string::npos) {
      leftovers.push_back(entry.path());
    }
  }
  for (const fs::path& leftover : leftovers) {
    fs::remove_all(leftover, ignored);
  }
}

std::string CheckpointFolder::Save(CheckpointHeader header,
                                   const StateSnapshot& snapshot) {
  header.sequence = next_sequence_++;
  std::string path = fmt::format("{}/{}{:08}", path_, kPrefix, header.step);
  // Never replaces a checkpoint, so that the older one always exists.
  if (fs::exists(path)) path += fmt::format("-{}", header.sequence);
  const std::string temporary =
      fmt::format("{}{}{}-{}", path, kTemporary, getpid(), header.sequence);
  try {
    std::error_code error;
    fs::create_directory(temporary, error);
    FUSOR_CHECK(!error, kCheckpoint, "cannot write {}: {}", path,
                error.message());
    WriteCheckpointFiles(temporary, header, snapshot);
    FUSOR_CHECK(std::rename(temporary.c_str(), path.c_str()) == 0, kCheckpoint,
                "cannot write {}: {}", path, std::strerror(errno));
    SyncFolder(path_, ErrorCode::kCheckpoint);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    throw;
  }
  return path;
}

void CheckpointFolder::Prune(int keep) {
  if (keep == 0) return;
  std::vector<Found> found = FindCheckpoints(path_);
  std::erase_if(found, [](const Found& f) { return f.sequence < 0; });
  if (found.size() <= static_cast<size_t>(keep)) return;
  ReadCheckpoint(found.front().path);
  for (size_t i = keep; i < found.size(); ++i) {
    // Renames first, because a half-removed folder would look corrupt.
    const std::string going =
        fmt::format("{}{}{}-old", found[i].path, kTemporary, getpid());
    std::error_code ignored;
    fs::rename(found[i].path, going, ignored);
    fs::remove_all(going, ignored);
  }
}

std::vector<std::string> ListCheckpoints(const std::string& path) {
  std::vector<std::string> names;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(path, none)) {
    const std::string name = entry.path().filename();
    if (name.starts_with(kPrefix) &&
        name.find(kTemporary) == std::string::npos) {
      names.push_back(name);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

NewestCheckpoint ReadNewestCheckpoint(const std::string& path) {
  NewestCheckpoint newest;
  for (const Found& found : FindCheckpoints(path)) {
    if (found.sequence < 0) {
      newest.skipped.push_back(found.damage);
      continue;
    }
    try {
      newest.checkpoint = ReadCheckpoint(found.path);
      break;
    } catch (const Error& e) {
      newest.skipped.emplace_back(e.what());
    }
  }
  return newest;
}

}  // namespace fusor::runtime
