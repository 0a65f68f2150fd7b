#include "runtime/data/files/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace fusor::runtime {
namespace {

// Linux's MADV_POPULATE_READ, which older headers lack.
constexpr int kPopulateRead = 22;

}  // namespace

MappedFile::MappedFile(std::string path, ErrorCode code)
    : path_(std::move(path)), code_(code) {
  const auto fail = [&](const char* reason) {
    ThrowError(code_, fmt::format("cannot read {}: {}", path_, reason));
  };
  // O_NONBLOCK: rejects a FIFO instead of waiting for it.
  const int file = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) fail(std::strerror(errno));
  struct stat status = {};
  void* data = nullptr;
  int error = 0;
  if (fstat(file, &status) != 0) {
    error = errno;
  } else if (!S_ISREG(status.st_mode)) {
    error = EINVAL;
  } else if (status.st_size > 0) {
    size_ = static_cast<size_t>(status.st_size);
    data = mmap(nullptr, size_, PROT_READ, MAP_SHARED, file, 0);
    if (data == MAP_FAILED) error = errno;
  }
  close(file);
  if (error != 0) fail(std::strerror(error));
  data_ = static_cast<const uint8_t*>(data);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<uint8_t*>(data_), size_);
}

void MappedFile::Release() const {
  if (data_ != nullptr) {
    madvise(const_cast<uint8_t*>(data_), size_, MADV_DONTNEED);
  }
}

void MappedFile::Load(size_t offset, size_t size) const {
  FUSOR_ASSERT(offset <= size_ && size <= size_ - offset,
               "{}: {} bytes at {} of {}", path_, size, offset, size_);
  static const auto kPage = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t begin = offset / kPage * kPage;
  auto* at = const_cast<uint8_t*>(data_) + begin;
  while (madvise(at, offset + size - begin, kPopulateRead) != 0) {
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno == EINVAL) return;  // an older kernel
    ThrowError(code_, fmt::format("cannot read {}: {}", path_,
                                  errno == EFAULT ? "it has become shorter"
                                                  : std::strerror(errno)));
  }
}

}  // namespace fusor::runtime
