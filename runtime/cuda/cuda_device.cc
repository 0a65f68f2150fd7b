#include "runtime/cuda/cuda_device.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#ifdef FUSOR_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

#include "ir/support/error.h"
#include "ir/target/target.h"
#include "runtime/cuda/context.h"
#include "runtime/cuda/cuda_executable.h"
#include "runtime/cuda/diagnose.h"
#include "runtime/cuda/host_copies.h"

namespace fusor::cuda {
namespace {

// Marks a host range for profilers, if the build has NVTX's header. Costs only
// a branch if no profiler is attached.
class NvtxRange {
 public:
  // `name` is copied.
  explicit NvtxRange([[maybe_unused]] const char* name) {
#ifdef FUSOR_NVTX
    nvtxRangePushA(name);
#endif
  }
  ~NvtxRange() {
#ifdef FUSOR_NVTX
    nvtxRangePop();
#endif
  }
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;
};

using ContextPtr = std::shared_ptr<const Context>;

CUdeviceptr Address(const void* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}

class CudaMemory : public runtime::Memory {
 public:
  CudaMemory(ContextPtr context, size_t bytes)
      : context_(std::move(context)), bytes_(bytes) {
    const Driver& driver = context_->Enter();
    const CUresult result =
        driver.cuMemAlloc(&data_, std::max<size_t>(bytes, 1));
    FUSOR_CHECK(result != CUDA_ERROR_OUT_OF_MEMORY, kOutOfMemory,
                "{}: {} bytes asked for, {} free", context_->name(), bytes,
                context_->free_bytes());
    driver.Check(result, "cuMemAlloc");
    // Synchronises, so that work on any stream finds the memory zeroed.
    const CUresult zeroed = driver.cuMemsetD8Async(data_, 0, bytes, nullptr);
    const CUresult ended =
        zeroed == CUDA_SUCCESS ? driver.cuStreamSynchronize(nullptr) : zeroed;
    if (ended != CUDA_SUCCESS) Driver::Ignore(driver.cuMemFree(data_));
    driver.Check(ended, "cuMemsetD8Async");
  }
  ~CudaMemory() override {
    Driver::Ignore(context_->EnterNoThrow().cuMemFree(data_));
  }
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;

  void* data() override { return reinterpret_cast<void*>(data_); }
  size_t bytes() const override { return bytes_; }

 private:
  ContextPtr context_;
  size_t bytes_;
  CUdeviceptr data_ = 0;
};

class CudaEvent : public runtime::Event {
 public:
  explicit CudaEvent(ContextPtr context)
      : context_(std::move(context)), event_(*context_, true) {}
  void Synchronize() override {
    const Driver& driver = context_->Enter();
    driver.Check(driver.cuEventSynchronize(event_.get()), "cuEventSynchronize");
  }
  double ElapsedMs(const runtime::Event& start) const override {
    const Driver& driver = context_->Enter();
    float ms = 0;
    const CUevent from = static_cast<const CudaEvent&>(start).get();
    driver.Check(driver.cuEventElapsedTime(&ms, from, event_.get()),
                 "cuEventElapsedTime");
    return ms;
  }
  CUevent get() const { return event_.get(); }

 private:
  ContextPtr context_;
  DriverEvent event_;
};

// The ranges of pinned memory that a device's AllocateHost has allocated.
class PinnedRanges {
 public:
  void Add(const void* data, size_t bytes) {
    const std::lock_guard lock(mutex_);
    ranges_[static_cast<const char*>(data)] = bytes;
  }
  void Remove(const void* data) {
    const std::lock_guard lock(mutex_);
    ranges_.erase(static_cast<const char*>(data));
  }
  bool Contain(const void* data, size_t bytes) const {
    const auto* begin = static_cast<const char*>(data);
    const std::lock_guard lock(mutex_);
    auto range = ranges_.upper_bound(begin);
    if (range == ranges_.begin()) return false;
    --range;
    return begin + bytes <= range->first + range->second;
  }

 private:
  mutable std::mutex mutex_;
  std::map<const char*, size_t> ranges_;
};

class PinnedMemory : public runtime::Memory {
 public:
  PinnedMemory(ContextPtr context, std::shared_ptr<PinnedRanges> ranges,
               size_t bytes)
      : context_(std::move(context)),
        ranges_(std::move(ranges)),
        bytes_(bytes) {
    const Driver& driver = context_->Enter();
    driver.Check(driver.cuMemHostAlloc(&data_, std::max<size_t>(bytes, 1), 0),
                 "cuMemHostAlloc");
    ranges_->Add(data_, bytes);
  }
  // Waits for copies in flight.
  ~PinnedMemory() override {
    ranges_->Remove(data_);
    const Driver& driver = context_->EnterNoThrow();
    Driver::Ignore(driver.cuCtxSynchronize());
    Driver::Ignore(driver.cuMemFreeHost(data_));
  }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  void* data() override { return data_; }
  size_t bytes() const override { return bytes_; }

 private:
  ContextPtr context_;
  std::shared_ptr<PinnedRanges> ranges_;
  void* data_ = nullptr;
  size_t bytes_;
};

// How a device's streams capture graphs: in thread-local mode; if the driver or
// a library rejects that, in relaxed mode; if that is rejected too, not at all.
struct Graphs {
  bool enabled = true;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
  codegen::WarningHandler warning;

  void Tell(const std::string& rejections, const char* instead) const {
    if (warning) {
      warning(fmt::format("CUDA graph of a step: {}; {}", rejections, instead));
    }
  }
};

constexpr char kOneByOne[] = "kernels and calls are launched one by one";

// Returns whether the device rejected the work. A lost peer or a bug does not
// count.
bool IsRejection(const Error& e) {
  return e.code() == ErrorCode::kDevice || e.code() == ErrorCode::kOutOfMemory;
}

class CudaStream : public runtime::Stream {
 public:
  CudaStream(ContextPtr context, std::shared_ptr<Graphs> graphs,
             std::shared_ptr<const PinnedRanges> pinned, int64_t graph_steps)
      : context_(std::move(context)),
        graphs_(std::move(graphs)),
        pinned_(std::move(pinned)),
        copies_(*context_, graph_steps) {
    const Driver& driver = context_->Enter();
    driver.Check(driver.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING),
                 "cuStreamCreate");
  }
  // Waits for pending work, whose memory may be freed next.
  ~CudaStream() override {
    const Driver& driver = context_->EnterNoThrow();
    Driver::Ignore(driver.cuStreamSynchronize(stream_));
    Driver::Ignore(driver.cuStreamDestroy(stream_));
  }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  void Launch(const runtime::Executable& executable, void* const* args,
              size_t num_args) override {
    const auto& work = static_cast<const CudaExecutable&>(executable);
    FUSOR_ASSERT(num_args == work.num_args(), "{}: {} arguments, expected {}",
                 work.name(), num_args, work.num_args());
    const NvtxRange range(work.name().c_str());
    try {
      work.Enqueue(context_->Enter(), stream_, args);
    } catch (const Error& e) {
      if (work.is_graph() && IsRejection(e)) RejectLaunch(e);
      throw;
    }
  }
  void CopyToDevice(void* device, const void* host, size_t bytes) override {
    const NvtxRange range("copy to device");
    copies_.Copy(Address(device), host, bytes, stream_);
  }
  void CopyToDevice(void* device, const void* host, size_t bytes,
                    runtime::Event& copied) override {
    const NvtxRange range("copy to device");
    copies_.Copy(Address(device), host, bytes, stream_,
                 pinned_->Contain(host, bytes),
                 static_cast<CudaEvent&>(copied).get());
  }
  void CopyToHost(void* host, const void* device, size_t bytes) override {
    const Driver& driver = context_->Enter();
    driver.Check(
        driver.cuMemcpyDtoHAsync(host, Address(device), bytes, stream_),
        "cuMemcpyDtoHAsync");
  }
  void Record(runtime::Event& event) override {
    const Driver& driver = context_->Enter();
    driver.Check(
        driver.cuEventRecord(static_cast<CudaEvent&>(event).get(), stream_),
        "cuEventRecord");
  }
  void Wait(const runtime::Event& event) override {
    const Driver& driver = context_->Enter();
    const CUevent awaited = static_cast<const CudaEvent&>(event).get();
    driver.Check(driver.cuStreamWaitEvent(stream_, awaited, 0),
                 "cuStreamWaitEvent");
  }
  void Synchronize() override {
    const Driver& driver = context_->Enter();
    driver.Check(driver.cuStreamSynchronize(stream_), "cuStreamSynchronize");
  }

  std::unique_ptr<runtime::Executable> Capture(
      const std::function<void()>& work) override {
    std::string rejections;
    while (graphs_->enabled) {
      try {
        auto graph = CaptureOnce(work);
        if (!rejections.empty()) {
          graphs_->Tell(rejections, "it is captured in relaxed mode");
        }
        return graph;
      } catch (const Error& e) {
        if (!IsRejection(e)) throw;
        const bool relaxed = graphs_->mode == CU_STREAM_CAPTURE_MODE_RELAXED;
        rejections +=
            fmt::format("{}{} capture: {}", rejections.empty() ? "" : "; ",
                        relaxed ? "relaxed" : "thread-local", e.what());
        graphs_->enabled = !relaxed;
        graphs_->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
        if (relaxed) graphs_->Tell(rejections, kOneByOne);
      }
    }
    return nullptr;
  }

  CUstream get() const { return stream_; }

 private:
  std::unique_ptr<runtime::Executable> CaptureOnce(
      const std::function<void()>& work) {
    const Driver& driver = context_->Enter();
    driver.Check(driver.cuStreamBeginCapture(stream_, graphs_->mode),
                 "cuStreamBeginCapture");
    CUgraph graph = nullptr;
    try {
      work();
    } catch (...) {
      Driver::Ignore(driver.cuStreamEndCapture(stream_, &graph));
      if (graph != nullptr) Driver::Ignore(driver.cuGraphDestroy(graph));
      throw;
    }
    driver.Check(driver.cuStreamEndCapture(stream_, &graph),
                 "cuStreamEndCapture");
    return InstantiateGraph(*context_, graph, stream_);
  }

  void RejectLaunch(const Error& e) {
    if (std::exchange(graphs_->enabled, false)) {
      graphs_->Tell(e.what(), kOneByOne);
    }
  }

  ContextPtr context_;
  const std::shared_ptr<Graphs> graphs_;
  const std::shared_ptr<const PinnedRanges> pinned_;
  HostCopies copies_;
  CUstream stream_ = nullptr;
};

class CudaDevice : public runtime::Device {
 public:
  CudaDevice(int ordinal, const runtime::BackendOptions& options,
             MakeDeviceCall make_call)
      : context_(std::make_shared<const Context>(ordinal)),
        graphs_(std::make_shared<Graphs>(
            Graphs{.enabled = options.graph, .warning = options.warning})),
        graph_steps_(options.graph_steps),
        make_call_(std::move(make_call)) {}

  std::string description() const override {
    return fmt::format("{}, sm_{}, {} multiprocessors", context_->name(),
                       context_->compute_capability(),
                       context_->multiprocessors());
  }
  std::unique_ptr<runtime::Memory> Allocate(size_t bytes) override {
    return std::make_unique<CudaMemory>(context_, bytes);
  }
  std::unique_ptr<runtime::Memory> AllocateHost(size_t bytes) override {
    return std::make_unique<PinnedMemory>(context_, pinned_, bytes);
  }
  bool is_asynchronous() const override { return true; }
  size_t free_bytes() const override {
    const size_t free = context_->free_bytes();
    return free - std::min(free, kReservedBytes);
  }
  std::unique_ptr<runtime::Stream> CreateStream() override {
    return std::make_unique<CudaStream>(context_, graphs_, pinned_,
                                        graph_steps_);
  }
  std::unique_ptr<runtime::Event> CreateEvent() override {
    return std::make_unique<CudaEvent>(context_);
  }
  std::unique_ptr<runtime::Executable> LoadKernel(
      const codegen::CompiledKernel& kernel) override {
    return LoadKernelModule(*context_, kernel);
  }
  std::unique_ptr<runtime::Executable> LoadCall(
      const codegen::LibraryCall& call) override {
    context_->Enter();
    std::unique_ptr<DeviceCall> ready = make_call_ ? make_call_(call) : nullptr;
    FUSOR_CHECK(ready != nullptr, kDevice,
                "{}: {}: the CUDA backend has no library that runs it",
                context_->name(), call.op_name());
    const int64_t workspace = ready->unplanned_workspace_bytes();
    return WrapCall(call, std::move(ready),
                    workspace > 0 ? Workspace(workspace) : nullptr);
  }

 private:
  // Returns memory that all calls with unplanned workspaces share. Calls that
  // were loaded before keep a smaller one, since graphs contain its address.
  std::shared_ptr<runtime::Memory> Workspace(int64_t bytes) {
    const auto size = static_cast<size_t>(bytes);
    if (workspace_ == nullptr || workspace_->bytes() < size) {
      workspace_ = Allocate(size);
    }
    return workspace_;
  }

  ContextPtr context_;
  const std::shared_ptr<Graphs> graphs_;
  const int64_t graph_steps_;
  const std::shared_ptr<PinnedRanges> pinned_ =
      std::make_shared<PinnedRanges>();
  MakeDeviceCall make_call_;
  std::shared_ptr<runtime::Memory> workspace_;
};

std::string Upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(c));
  return text;
}

}  // namespace

std::unique_ptr<runtime::Device> OpenCudaDevice(
    int ordinal, const runtime::BackendOptions& options,
    MakeDeviceCall make_call) {
  return std::make_unique<CudaDevice>(ordinal == 0 ? DeviceOfRank() : ordinal,
                                      options, std::move(make_call));
}

CUstream DriverStreamOf(const runtime::Stream& stream) {
  return static_cast<const CudaStream&>(stream).get();
}

std::optional<ir::Target> TargetOfDevice() {
  if (CountDevices() == 0) return std::nullopt;
  const Context context(DeviceOfRank());
  const int capability = context.compute_capability();
  std::optional<ir::Target> fits;  // of the newest capability so far
  for (const std::string& name : ir::TargetNames()) {
    ir::Target target = ir::FindTarget(name);
    if (!target.simt || target.compute_capability > capability) continue;
    // "nvidia-h200" matches "NVIDIA H200 NVL".
    const std::string model = Upper(name.substr(name.find('-') + 1));
    if (target.compute_capability == capability &&
        Upper(context.name()).find(model) != std::string::npos) {
      return target;
    }
    if (!fits || target.compute_capability > fits->compute_capability) {
      fits = std::move(target);
    }
  }
  FUSOR_CHECK(fits.has_value(), kDevice,
              "{}: no target describes sm_{}; `fusor doctor` lists them",
              context.name(), capability);
  if (fits->compute_capability != capability) {
    fits->name = fmt::format("sm_{}", capability);
    fits->compute_capability = capability;
    fits->threads = context.multiprocessors();
  }
  return fits;
}

}  // namespace fusor::cuda
