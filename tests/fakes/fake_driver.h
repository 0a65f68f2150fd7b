#pragma once

// A CUDA driver without a GPU: a shared object under the driver's own name with
// those of its functions that the CUDA backend calls. Memory is the host's,
// kernels are the text that PrintCuda prints - as the image of a module - and
// run on the emulator; streams run when they must, or earlier, in an order
// drawn from a seed among those that streams and events allow.
//
// It is stricter than a driver need be: a call needs a current context, an
// asynchronous copy from the host pinned memory, and nothing may be awaited,
// allocated or freed while a stream captures. A programmatic dependent launch
// must come directly behind another kernel of its stream. Other streams join a
// capture by its events, and must be joined again, as a driver has it:
// fake_capture.h. Memory is full of garbage.

#include <cuda.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fusor::test {

struct FakeBackendOptions {
  uint64_t seed = 1;
  int64_t memory_bytes = int64_t{4} << 30;
  int version = 13000;  // of the driver
  std::string name = "NVIDIA H200";
  int major = 9, minor = 0;  // compute capability
  int devices = 1;           // alike but for their number
};

// What tests see of it.
class FakeDriver {
 public:
  virtual ~FakeDriver() = default;
  // Forgets everything; nothing of the driver may be in use.
  virtual void Reset(const FakeBackendOptions& options) = 0;
  // Names of the functions called since Reset or the last call of this, but for
  // cuCtxSetCurrent, and those that only ask.
  virtual std::vector<std::string> TakeCalls() = 0;
  // What was wrong first: the emulator's words, or a rule that was broken.
  virtual std::string problem() const = 0;
  // Gives host code to a stream, or to the graph that it captures, which stands
  // for a kernel; `data` must live as long as that.
  virtual CUresult LaunchHost(CUstream stream, CUhostFn function,
                              void* data) = 0;
  // The next `times` calls of that function fail with CUDA_ERROR_NOT_SUPPORTED,
  // those that give work to streams only while one captures: the capture is
  // then invalid.
  virtual void Reject(const std::string& name, int times) = 0;
  // Pieces of captured work that wait for a function of cuLaunchHostFunc, other
  // such functions excepted; of all captures since Reset.
  virtual int64_t work_behind_host_functions() const = 0;
  // How many such functions were captured.
  virtual int64_t captured_host_functions() const = 0;
  // Edges of all captures since Reset over which a kernel may start early.
  virtual int64_t programmatic_edges() const = 0;
  // Of all modules that are loaded, which else waits for the first launch.
  virtual void CompileTexts() = 0;
  virtual int64_t used_bytes() const = 0;  // of device memory
  virtual int64_t pinned_bytes() const = 0;
};

// Makes the object the driver of this process, before anything asks for one.
FakeDriver& LoadFakeDriver();

}  // namespace fusor::test
