#pragma once

// A fake CUDA driver for machines without a GPU: a shared object under the
// driver's name with the functions that the CUDA backend calls. Device memory
// is host memory. A module's image is the text printed by PrintCuda, and the
// emulator runs its kernels. Work of streams runs when it must, or earlier, in
// an order drawn from a seed among those that streams and events allow.
//
// It is stricter than a real driver. Every call needs a current context, and
// asynchronous copies from the host need pinned memory. While a stream
// captures, no call may wait, allocate or free. As in a real driver, other
// streams join a capture by its events and must be joined again before it ends
// (fake_capture.h). New memory contains garbage.

#include <cuda.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fusor::test {

struct FakeBackendOptions {
  uint64_t seed = 1;
  int64_t memory_bytes = int64_t{4} << 30;
  int version = 13000;  // driver version
  std::string name = "NVIDIA H200";
  int major = 9, minor = 0;  // compute capability
  int devices = 1;           // identical except for their number
};

// The interface for tests.
class FakeDriver {
 public:
  virtual ~FakeDriver() = default;
  // Clears all state. Nothing of the driver may be in use.
  virtual void Reset(const FakeBackendOptions& options) = 0;
  // Returns the names of the functions called since Reset or the last
  // TakeCalls, except cuCtxSetCurrent and queries.
  virtual std::vector<std::string> TakeCalls() = 0;
  // Returns the first error: the emulator's message, or a violated rule.
  virtual std::string problem() const = 0;
  // Enqueues host code in place of a kernel, or captures it. `data` must live
  // as long as the stream or the graph.
  virtual CUresult LaunchHost(CUstream stream, CUhostFn function,
                              void* data) = 0;
  // Makes the next `times` calls of a function fail with
  // CUDA_ERROR_NOT_SUPPORTED. Functions that enqueue work fail only while a
  // stream captures, and invalidate the capture.
  virtual void Reject(const std::string& name, int times) = 0;
  // Counts captured work that waits for a function of cuLaunchHostFunc, except
  // other such functions, in all captures since Reset.
  virtual int64_t work_behind_host_functions() const = 0;
  // Counts the captured functions of cuLaunchHostFunc.
  virtual int64_t captured_host_functions() const = 0;
  // Compiles all loaded modules now instead of at the first launch.
  virtual void CompileTexts() = 0;
  virtual int64_t used_bytes() const = 0;  // of the device
  virtual int64_t pinned_bytes() const = 0;
};

// Makes the fake the driver of this process. Call it before anything else loads
// a driver.
FakeDriver& LoadFakeDriver();

}  // namespace fusor::test
