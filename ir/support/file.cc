#include "ir/support/file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <utility>

namespace fusor {
namespace {

[[noreturn]] void Throw(ErrorCode code, std::string_view what,
                        const std::string& path, const char* reason) {
  ThrowError(code, fmt::format("cannot {} {}: {}", what, path, reason));
}

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() { Close(); }

  int get() const { return fd_; }
  bool Close() {
    const int fd = Release();
    return fd < 0 || close(fd) == 0;
  }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// O_NONBLOCK: rejects a FIFO instead of waiting for it.
int OpenRegular(const std::string& path, ErrorCode code, int64_t* size) {
  FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status = {};
  if (file.get() < 0 || fstat(file.get(), &status) != 0) {
    Throw(code, "read", path, std::strerror(errno));
  }
  if (!S_ISREG(status.st_mode)) {
    Throw(code, "read", path, "not a regular file");
  }
  *size = status.st_size;
  return file.Release();
}

// Reads up to bytes.size() bytes from `offset` on; returns their number.
size_t ReadAt(int fd, int64_t offset, std::span<uint8_t> bytes,
              const std::string& path, ErrorCode code) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = pread(fd, bytes.data() + done, bytes.size() - done,
                                offset + static_cast<int64_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) Throw(code, "read", path, std::strerror(errno));
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  return done;
}

bool WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = write(fd, bytes.data(), bytes.size());
    if (count < 0 && errno != EINTR) return false;
    if (count > 0) bytes.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

}  // namespace

void SyncFolder(const std::string& folder, ErrorCode code) {
  const FileDescriptor file(
      open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (file.get() < 0 || fsync(file.get()) != 0) {
    Throw(code, "write", folder, std::strerror(errno));
  }
}

void ReadFile(const std::string& path, ErrorCode code,
              std::vector<uint8_t>& bytes) {
  int64_t size = 0;
  const FileDescriptor file(OpenRegular(path, code, &size));
  bytes.resize(static_cast<size_t>(size));
  bytes.resize(ReadAt(file.get(), 0, bytes, path, code));
}

InputFile::InputFile(std::string path, ErrorCode code)
    : path_(std::move(path)),
      code_(code),
      file_(OpenRegular(path_, code, &size_)) {}

InputFile::~InputFile() { close(file_); }

void InputFile::Read(int64_t offset, std::span<uint8_t> bytes) const {
  const size_t count = ReadAt(file_, offset, bytes, path_, code_);
  if (count < bytes.size())
    Throw(code_, "read", path_, "it has become shorter");
}

void AllowOpenFiles(size_t count) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, limit.rlim_cur + count);
  setrlimit(RLIMIT_NOFILE, &limit);
}

namespace {

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "."
         : slash == 0               ? "/"
                                    : path.substr(0, slash);
}

std::string TemporaryName(const std::string& path) {
  static std::atomic<int> counter = 0;
  return fmt::format("{}.tmp-{}-{}", path, getpid(), counter++);
}

// True for a device or a pipe, which a rename must not replace.
bool IsStream(const std::string& path) {
  struct stat status = {};
  return stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode) &&
         !S_ISDIR(status.st_mode);
}

using Writer = std::function<void(const AppendBytes&)>;

// Writes to the file until something fails.
AppendBytes AppendTo(int fd, const std::string& path, ErrorCode code) {
  return [fd, &path, code](std::string_view bytes) {
    if (!WriteAll(fd, bytes)) Throw(code, "write", path, std::strerror(errno));
  };
}

void WriteStream(const std::string& path, const Writer& write, ErrorCode code) {
  FileDescriptor file(open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY));
  if (file.get() < 0) Throw(code, "write", path, std::strerror(errno));
  write(AppendTo(file.get(), path, code));
  if (!file.Close()) Throw(code, "write", path, std::strerror(errno));
}

// Resolves symbolic links, so that the link stays and its target is written.
std::string FollowLinks(const std::string& path, ErrorCode code) {
  constexpr int kMaxLinks = 40;  // the system's limit
  std::string name = path;
  for (int links = 0; links <= kMaxLinks; ++links) {
    char to[PATH_MAX];
    const ssize_t size = readlink(name.c_str(), to, sizeof(to));
    if (size < 0) return name;  // no link, or nothing there yet
    const std::string next(to, static_cast<size_t>(size));
    name = next.starts_with('/') ? next : FolderOf(name) + "/" + next;
  }
  Throw(code, "write", path, std::strerror(ELOOP));
}

// Throws if `path` is a folder, because the final rename would fail.
int CreateTemporary(const std::string& temporary, const std::string& path,
                    ErrorCode code) {
  struct stat status = {};
  if (stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
    Throw(code, "write", path, std::strerror(EISDIR));
  }
  const int fd =
      open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) Throw(code, "write", path, std::strerror(errno));
  return fd;
}

void Write(const std::string& name, const Writer& write, bool durable,
           ErrorCode code) {
  if (IsStream(name)) return WriteStream(name, write, code);
  const std::string path = FollowLinks(name, code);
  const std::string temporary = TemporaryName(path);
  FileDescriptor file(CreateTemporary(temporary, path, code));
  try {
    write(AppendTo(file.get(), path, code));
    if ((durable && fsync(file.get()) != 0) || !file.Close() ||
        std::rename(temporary.c_str(), path.c_str()) != 0) {
      Throw(code, "write", path, std::strerror(errno));
    }
  } catch (...) {
    unlink(temporary.c_str());
    throw;
  }
  if (durable) SyncFolder(FolderOf(path), code);
}

}  // namespace

void WriteFileAtomically(const std::string& path, std::string_view bytes,
                         ErrorCode code) {
  Write(
      path, [&](const AppendBytes& append) { append(bytes); },
      /*durable=*/false, code);
}

void CheckWritable(const std::string& name, ErrorCode code) {
  if (IsStream(name)) {
    if (access(name.c_str(), W_OK) == 0) return;
    Throw(code, "write", name, std::strerror(errno));
  }
  const std::string path = FollowLinks(name, code);
  const std::string temporary = TemporaryName(path);
  const FileDescriptor file(CreateTemporary(temporary, path, code));
  unlink(temporary.c_str());
}

void WriteFileDurably(const std::string& path,
                      const std::function<void(const AppendBytes&)>& write,
                      ErrorCode code) {
  Write(path, write, /*durable=*/true, code);
}

}  // namespace fusor
