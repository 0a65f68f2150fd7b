#pragma once

// Runs the text printed by codegen/cuda without a GPU: compiles it as C++ and
// runs the threads of a block one after another, in an order drawn from a seed.
// Finds errors that a GPU does not report:
//   - accesses outside a buffer or shared memory, misaligned accesses, and
//     writes to buffers that a launch may only read;
//   - reads of bytes that were never written;
//   - races: two threads access a byte with no barrier in between, and one of
//     them writes it (no barrier orders different blocks);
//   - barriers and shuffles that some threads do not reach;
//   - products of warp groups without the fences, the commit and the wait that
//     they need;
//   - shared memory bank conflicts of four or more ways.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "codegen/cuda/cuda_printer.h"

namespace fusor::test {

struct EmulatedBuffer {
  void* data;
  int64_t bytes;
  bool written;      // the kernel writes it
  bool initialised;  // it has values before the launch
};

// The checks that a launch runs with.
enum class EmulatedChecks : uint8_t {
  kEveryByte,  // all of the above
  // Checks only bounds, alignment and barriers. Costs little time and no
  // memory.
  kBounds,
};

// Texts of kernels, compiled into one shared object by the compiler that built
// the tests.
class EmulatedModule {
 public:
  // Throws std::runtime_error with the compiler's messages.
  explicit EmulatedModule(std::span<const std::string> texts);
  ~EmulatedModule();
  EmulatedModule(const EmulatedModule&) = delete;
  EmulatedModule& operator=(const EmulatedModule&) = delete;

  // Runs the launches of text `index` in order. Returns the first problem with
  // its launch, block and thread, or "". Except for kBounds, buffers that share
  // memory are treated as one buffer.
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
