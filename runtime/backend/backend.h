#pragma once

// The interface between the runtime and a backend plug-in. It speaks of
// memory, kernels, library calls, streams and events only; it does not grow
// when ops are added.

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

// A kernel or library call that is ready to run. Immutable; may be launched
// concurrently on different streams only with different buffers.
class Executable {
 public:
  virtual ~Executable();
};

class Event {
 public:
  virtual ~Event();
  // Blocks the host until the event has happened.
  virtual void Synchronize() = 0;
  // Milliseconds from `start` to this event; both must have happened.
  virtual double ElapsedMs(const Event& start) const = 0;
};

// An in-order queue of work. Calls return at once; errors of earlier work may
// surface at any later call.
class Stream {
 public:
  virtual ~Stream();
  // Arguments as codegen::Step::args describes; `args` need not outlive the
  // call. No allocation, no host synchronisation.
  virtual void Launch(const Executable& executable, void* const* args,
                      size_t num_args) = 0;
  // The host may change its bytes as soon as this returns.
  virtual void CopyToDevice(void* device, const void* host, size_t bytes) = 0;
  // The host leaves its bytes as they are until `copied` has happened, which
  // may be long before the stream comes to the copy. From memory of
  // Device::AllocateHost the device takes them without the host's help.
  virtual void CopyToDevice(void* device, const void* host, size_t bytes,
                            Event& copied);
  // Returns at once if `host` is memory of Device::AllocateHost.
  virtual void CopyToHost(void* host, const void* device, size_t bytes) = 0;
  virtual void Record(Event& event) = 0;
  virtual void Wait(const Event& event) = 0;
  // Blocks the host until all work has ended; throws its first error.
  virtual void Synchronize() = 0;
  // Remembers the launches that `work` gives to this stream, instead of running
  // them, as one executable without arguments: cheaper to launch. Addresses
  // stay as they are. Null where the device has no such thing or was opened
  // without, or where it refuses: then BackendOptions::warning is told why.
  // `work` may be called several times, or not at all. What it needs memory for
  // at first should have run before. Where a launch of the executable throws
  // kDevice or kOutOfMemory, the device has refused it: the stream was given
  // nothing, and the warning is told.
  virtual std::unique_ptr<Executable> Capture(
      const std::function<void()>& work);
};

// Device memory, zero-filled at first. Freed on destruction.
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
  // Throws kOutOfMemory, saying asked and free bytes.
  virtual std::unique_ptr<Memory> Allocate(size_t bytes) = 0;
  virtual size_t free_bytes() const = 0;
  // Memory of the host that streams copy from and to beside the host's own
  // work: pinned, where the device reads and writes it itself. 64-byte aligned.
  // Throws kOutOfMemory.
  virtual std::unique_ptr<Memory> AllocateHost(size_t bytes);
  // Whether streams work beside the host; else each of their calls returns when
  // its work has ended.
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
  bool graph = true;  // a GPU launches a whole step as one graph
  codegen::WarningHandler warning{};  // may be null
};

// One plug-in. Lives as long as the process.
class Backend {
 public:
  virtual ~Backend();
  virtual std::string name() const = 0;
  virtual int device_count() const = 0;
  // One line each about what is usable and why not, for `fusor doctor`.
  virtual std::vector<std::string> Diagnose() const = 0;
  virtual std::unique_ptr<Device> OpenDevice(int ordinal,
                                             const BackendOptions& options) = 0;
  // For this machine's device, or for the named target.
  virtual std::unique_ptr<codegen::TargetCompiler> CreateCompiler(
      const std::string& target, const BackendOptions& options) = 0;
  // Connects this rank to all others of the store, for collectives on the
  // backend's memory; to be called by all of them. Throws kPeerLost, kUsage for
  // a network interface that is not there, or kDevice: this backend knows one
  // rank alone.
  virtual std::unique_ptr<Communicator> Connect(
      TcpStore& store, const CommunicatorOptions& options);
};

// What a plug-in exports, under the name kBackendEntry:
//   extern "C" fusor::runtime::BackendEntry FusorBackendEntry() noexcept;
struct BackendEntry {
  int abi_version;
  const char* build_id;  // kBuildId of the generated runtime/build_id.h
  std::unique_ptr<Backend> (*create)();
};
inline constexpr int kBackendAbiVersion = 5;
inline constexpr char kBackendEntry[] = "FusorBackendEntry";
const char* BuildId();

}  // namespace fusor::runtime
