#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "ir/support/error.h"

namespace fusor::runtime {

// A file in memory, read by the system when it is accessed. Its pages count as
// this process's memory until Release.
class MappedFile {
 public:
  // Throws `code` with the system's error message.
  MappedFile(std::string path, ErrorCode code);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  std::span<const uint8_t> bytes() const { return {data_, size_}; }

  // Reads a part of the file with one request. Throws if the part cannot be
  // read, e.g. since the file has become shorter; an access would end the
  // process. Kernels before Linux 5.14 read on access only.
  void Load(size_t offset, size_t size) const;

  // Unmaps the pages. They stay in the system's cache, and an access maps them
  // again.
  void Release() const;

 private:
  const std::string path_;
  const ErrorCode code_;
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace fusor::runtime
