#pragma once

// Runs the text that codegen/cuda prints without a GPU: compiled as C++, one
// thread of a block after the other, in an order drawn from a seed. Finds what
// a GPU would not tell:
//   - accesses outside a buffer or shared memory, to addresses that their size
//     does not divide, and writes to what a launch may only read;
//   - reads of what nobody has written;
//   - races: two threads touch a byte, one of them writes, and no barrier lies
//     between (blocks have none);
//   - barriers and shuffles that not all threads reach;
//   - accesses to shared memory by which four or more threads of a warp touch
//     different words of one bank;
//   - accesses to buffers before the thread has waited for earlier launches,
//   and
//     threads that end without: a programmatic dependent launch may start
//     before those have ended.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "codegen/cuda/cuda_printer.h"

namespace fusor::test {

struct EmulatedBuffer {
  void* data;
  int64_t bytes;
  bool written;      // by the kernel
  bool initialised;  // before the kernel
};

// What a launch is watched for.
enum class EmulatedChecks : uint8_t {
  kEveryByte,  // all of the above
  // Accesses outside buffers and shared memory, their alignment, barriers:
  // costs a small part of the time and no memory.
  kBounds,
};

// A shared object made of kernels' texts by the compiler that built the tests.
class EmulatedModule {
 public:
  // Throws std::runtime_error with what the compiler says.
  explicit EmulatedModule(std::span<const std::string> texts);
  ~EmulatedModule();
  EmulatedModule(const EmulatedModule&) = delete;
  EmulatedModule& operator=(const EmulatedModule&) = delete;

  // Launches text `index` in the given order. Returns the first problem, naming
  // launch, block and thread; empty when there is none. Buffers that share
  // memory are one buffer to it, but for kBounds.
  std::string Run(size_t index, std::span<const codegen::CudaLaunch> launches,
                  std::span<const EmulatedBuffer> buffers, uint64_t seed = 1,
                  EmulatedChecks checks = EmulatedChecks::kEveryByte) const;

 private:
  struct Library;
  std::unique_ptr<Library> library_;
};

// Prints, compiles and runs the kernel's phases.
std::string RunEmulated(const codegen::Kernel& kernel,
                        std::span<const EmulatedBuffer> buffers);

}  // namespace fusor::test
