#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/support/error.h"

namespace fusor {

// Reads a regular file into `bytes`, whose storage is reused. Throws `code`
// with the system's error message.
void ReadFile(const std::string& path, ErrorCode code,
              std::vector<uint8_t>& bytes);

// An open regular file. All functions throw the code that it was opened with,
// with the system's error message.
class InputFile {
 public:
  InputFile(std::string path, ErrorCode code);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  // Returns the size in bytes when it was opened.
  int64_t size() const { return size_; }
  // Reads the bytes from `offset` on. Throws if the file ends before them.
  void Read(int64_t offset, std::span<uint8_t> bytes) const;

 private:
  const std::string path_;
  const ErrorCode code_;
  int64_t size_ = 0;
  const int file_;  // opening it sets the size
};

// Raises this process's limit of open files, as far as the system permits, so
// that `count` more can be opened.
void AllowOpenFiles(size_t count);

// Writes a temporary file in the same folder and renames it to `path`, so that
// no reader sees a partial file. On failure throws `code` with the system's
// error message and removes the temporary file. Does not sync to disk. Follows
// symbolic links; writes directly into devices and pipes.
void WriteFileAtomically(const std::string& path, std::string_view bytes,
                         ErrorCode code);

// Writes all that `write` passes to its argument, like WriteFileAtomically, and
// flushes the file to disk. After a crash or power failure `path` is either the
// old or the new file; it is the old one if `write` throws.
using AppendBytes = std::function<void(std::string_view bytes)>;
void WriteFileDurably(const std::string& path,
                      const std::function<void(const AppendBytes&)>& write,
                      ErrorCode code);

// Waits until the entries of a folder would survive a power failure. Throws
// `code` with the system's error message.
void SyncFolder(const std::string& folder, ErrorCode code);

// Throws what WriteFileAtomically would throw, as far as it can be detected
// before writing. Use it before long computations. Leaves no file behind.
void CheckWritable(const std::string& path, ErrorCode code);

}  // namespace fusor
