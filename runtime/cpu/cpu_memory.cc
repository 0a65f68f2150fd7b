#include "runtime/cpu/cpu_memory.h"

#include <sys/mman.h>

#include "ir/support/error.h"
#include "ir/support/host_memory.h"

namespace fusor::cpu {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;

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

std::unique_ptr<runtime::Memory> AllocateMemory(size_t bytes, int threads) {
  // Checked before touching pages: the OOM killer would end the process.
  const size_t free = runtime::FreeHostBytes();
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
