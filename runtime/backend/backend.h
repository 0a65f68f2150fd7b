#pragma once

// The interface between the runtime and a backend plug-in. It covers only
// memory, kernels, library calls, streams and events, and does not grow when
// ops are added.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "codegen/plan/plan.h"
#include "codegen/target_compiler.h"
#include "runtime/backend/communicator.h"

namespace fusor::runtime {

class TcpStore;

// A kernel or library call that is ready to run. Immutable. Concurrent launches
// on different streams must use different buffers.
class Executable {
 public:
  virtual ~Executable();
};

class Event {
 public:
  virtual ~Event();
  // Blocks the host until the event has occurred.
  virtual void Synchronize() = 0;
  // Returns milliseconds from `start` to this event; both must have occurred.
  virtual double ElapsedMs(const Event& start) const = 0;
};

// An in-order queue of work. Calls return immediately; any later call may throw
// errors of earlier work.
class Stream {
 public:
  virtual ~Stream();
  // Launches with arguments as codegen::Step::args describes. `args` need not
  // outlive the call. Does not allocate or synchronise the host.
  virtual void Launch(const Executable& executable, void* const* args,
                      size_t num_args) = 0;
  // The host may modify its bytes as soon as this returns.
  virtual void CopyToDevice(void* device, const void* host, size_t bytes) = 0;
  // The host must keep its bytes unchanged until `copied` has occurred, which
  // may be long before the stream reaches the copy. Memory of
  // Device::AllocateHost is copied without host work.
  virtual void CopyToDevice(void* device, const void* host, size_t bytes,
                            Event& copied);
  // Returns immediately if `host` is memory of Device::AllocateHost.
  virtual void CopyToHost(void* host, const void* device, size_t bytes) = 0;
  virtual void Record(Event& event) = 0;
  virtual void Wait(const Event& event) = 0;
  // Blocks the host until all work has ended; throws its first error.
  virtual void Synchronize() = 0;
  // Captures the launches that `work` enqueues on this stream, instead of
  // running them, as one executable without arguments that is cheaper to
  // launch. Addresses are fixed. Returns null if the device does not support
  // capture or was opened without it, or if capture fails; a failure is
  // reported to BackendOptions::warning. `work` may run several times or not at
  // all. Its first-use allocations must happen before. If a launch of the
  // executable throws kDevice or kOutOfMemory, the device rejected it: nothing
  // was enqueued, and the warning handler is called.
  virtual std::unique_ptr<Executable> Capture(
      const std::function<void()>& work);
};

// Device memory, initially zero-filled. Freed on destruction.
class Memory {
 public:
  virtual ~Memory();
  virtual void* data() = 0;
  virtual size_t bytes() const = 0;
};

class Device {
 public:
  virtual ~Device();
  virtual std::string description() const = 0;
  // Throws kOutOfMemory with the requested and free bytes.
  virtual std::unique_ptr<Memory> Allocate(size_t bytes) = 0;
  virtual size_t free_bytes() const = 0;
  // Allocates host memory for copies that overlap with host work: pinned, if
  // the device accesses it directly. 64-byte aligned. Throws kOutOfMemory.
  virtual std::unique_ptr<Memory> AllocateHost(size_t bytes);
  // Whether streams run asynchronously to the host. If not, each stream call
  // returns when its work has ended.
  virtual bool is_asynchronous() const { return false; }
  virtual std::unique_ptr<Stream> CreateStream() = 0;
  virtual std::unique_ptr<Event> CreateEvent() = 0;
  virtual std::unique_ptr<Executable> LoadKernel(
      const codegen::CompiledKernel& kernel) = 0;
  virtual std::unique_ptr<Executable> LoadCall(
      const codegen::LibraryCall& call) = 0;
};

struct BackendOptions {
  int threads = 0;    // compute threads of a CPU device; 0: cores / local ranks
  bool graph = true;  // launch a whole step as one GPU graph
  // Steps whose inputs are copied to a GPU while earlier steps run; see
  // TrainOptions::graph_steps.
  int64_t graph_steps = 1;
  codegen::WarningHandler warning{};  // may be null
};

// A backend plug-in. Lives as long as the process.
class Backend {
 public:
  virtual ~Backend();
  virtual std::string name() const = 0;
  virtual int device_count() const = 0;
  // Returns lines on what is usable, or why not, for `fusor doctor`.
  virtual std::vector<std::string> Diagnose() const = 0;
  virtual std::unique_ptr<Device> OpenDevice(int ordinal,
                                             const BackendOptions& options) = 0;
  // Targets this machine's device if `target` is empty.
  virtual std::unique_ptr<codegen::TargetCompiler> CreateCompiler(
      const std::string& target, const BackendOptions& options) = 0;
  // Connects this rank to all others of the store, for collectives on the
  // backend's memory. Every rank must call this. Throws kPeerLost, kUsage if
  // the network interface does not exist, or kDevice if this backend supports
  // only one rank.
  virtual std::unique_ptr<Communicator> Connect(
      TcpStore& store, const CommunicatorOptions& options);
};

// A plug-in exports this function, named kBackendEntry:
//   extern "C" fusor::runtime::BackendEntry FusorBackendEntry() noexcept;
struct BackendEntry {
  int abi_version;
  const char* build_id;  // kBuildId of the generated runtime/build_id.h
  std::unique_ptr<Backend> (*create)();
};
inline constexpr int kBackendAbiVersion = 6;
inline constexpr char kBackendEntry[] = "FusorBackendEntry";
const char* BuildId();

}  // namespace fusor::runtime
