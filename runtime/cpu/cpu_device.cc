#include "runtime/cpu/cpu_device.h"

#include <sys/mman.h>

#include <chrono>
#include <cstring>
#include <fstream>

#include "codegen/cpu/host.h"
#include "ir/support/error.h"
#include "ir/support/host_memory.h"
#include "runtime/cpu/cpu_executable.h"
#include "runtime/cpu/library_calls.h"
#include "runtime/cpu/thread_team.h"

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

// Allocates zeroed, already faulted pages; huge pages if the system provides
// them. Page faults and TLB misses of large activations cost PyTorch up to a
// third of a step. `threads` threads touch the pages. Throws kOutOfMemory.
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
              "CPU memory: the system does not provide {} bytes ({} are free)",
              bytes, free);
  const size_t alignment = huge ? kHugePage : kPage;
  const auto address = reinterpret_cast<uintptr_t>(mapping);
  auto* data = static_cast<char*>(mapping) +
               ((alignment - address % alignment) % alignment);
  auto memory = std::make_unique<MappedMemory>(mapping, mapped, data, bytes);
  if (huge) madvise(data, bytes, MADV_HUGEPAGE);  // advice: may be ignored
  TouchPages(data, bytes, threads);
  return memory;
}

using Clock = std::chrono::steady_clock;

class CpuEvent : public runtime::Event {
 public:
  void Synchronize() override {}
  double ElapsedMs(const runtime::Event& start) const override {
    const auto& from = static_cast<const CpuEvent&>(start);
    return std::chrono::duration<double, std::milli>(time_ - from.time_)
        .count();
  }
  void Happen() { time_ = Clock::now(); }

 private:
  Clock::time_point time_{};
};

class CpuStream : public runtime::Stream {
 public:
  explicit CpuStream(int threads) : threads_(threads) {}

  void Launch(const runtime::Executable& executable, void* const* args,
              size_t num_args) override {
    const auto& work = static_cast<const CpuExecutable&>(executable);
    FUSOR_ASSERT(num_args == work.num_args(), "{}: {} arguments, expected {}",
                 work.name(), num_args, work.num_args());
    const ThreadCount count(threads_);
    const FlushSubnormals flush;
    work.Run(args);
  }

  void CopyToDevice(void* device, const void* host, size_t bytes) override {
    std::memcpy(device, host, bytes);
  }
  void CopyToHost(void* host, const void* device, size_t bytes) override {
    std::memcpy(host, device, bytes);
  }
  void Record(runtime::Event& event) override {
    static_cast<CpuEvent&>(event).Happen();
  }
  void Wait(const runtime::Event&) override {}
  void Synchronize() override {}

 private:
  int threads_;
};

class CpuDevice : public runtime::Device {
 public:
  explicit CpuDevice(int threads) : threads_(threads) {
    StartTeam(threads);
    PrepareMatrixProducts();
  }

  std::string description() const override {
    return fmt::format("{}, {} thread{}", DescribeCpu(), threads_,
                       threads_ == 1 ? "" : "s");
  }
  std::unique_ptr<runtime::Memory> Allocate(size_t bytes) override {
    return AllocateMemory(bytes, threads_);
  }
  size_t free_bytes() const override { return runtime::FreeHostBytes(); }
  std::unique_ptr<runtime::Stream> CreateStream() override {
    return std::make_unique<CpuStream>(threads_);
  }
  std::unique_ptr<runtime::Event> CreateEvent() override {
    return std::make_unique<CpuEvent>();
  }
  std::unique_ptr<runtime::Executable> LoadKernel(
      const codegen::CompiledKernel& kernel) override {
    return MakeKernelExecutable(kernel, threads_);
  }
  std::unique_ptr<runtime::Executable> LoadCall(
      const codegen::LibraryCall& call) override {
    // oneDNN partitions the work for the number of threads at creation.
    const ThreadCount count(threads_);
    return MakeCallExecutable(call);
  }

 private:
  int threads_;
};

std::string ModelName() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("model name")) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown CPU";
}

}  // namespace

std::string DescribeCpu() {
  const char* isa = "without AVX2";
  if (__builtin_cpu_supports("avx512bf16")) {
    isa = "AVX-512 with bf16";
  } else if (__builtin_cpu_supports("avx512bw")) {
    isa = "AVX-512";
  } else if (__builtin_cpu_supports("avx2")) {
    isa = "AVX2";
  }
  return fmt::format("{}, {}", ModelName(), isa);
}

std::unique_ptr<runtime::Device> OpenCpuDevice(int threads) {
  return std::make_unique<CpuDevice>(threads);
}

}  // namespace fusor::cpu
