#include "tests/fakes/fake_driver.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <set>

#include "tests/fakes/emulated_machine.h"
#include "tests/fakes/fake_capture.h"

// The targets of the driver's handles.
struct CUstream_st {
  int queue = 0;
  std::shared_ptr<fusor::test::FakeCapture> capture{};  // in progress, or null
};
struct CUevent_st {
  bool timing = false;
  fusor::test::HappeningPtr last{};
  // The capture that contains the last record, or null.
  std::shared_ptr<fusor::test::FakeCapture> capture{};
  int record = -1;
};
struct CUmod_st {
  const std::string* text = nullptr;
  std::vector<std::unique_ptr<CUfunc_st>> functions{};
};
struct CUfunc_st {
  const std::string* text = nullptr;
  std::string entry{};
  size_t num_params = 0;
  unsigned dynamic_bytes = 0;  // of shared memory that are allowed
};
struct CUgraph_st {
  std::shared_ptr<const fusor::test::FakeCapture> work{};
};
struct CUgraphExec_st {
  std::shared_ptr<const fusor::test::FakeCapture> work{};
  std::vector<int> queues{};  // of all branches except the first
};

namespace fusor::test {
namespace {

// Returns the primary context of a device.
CUcontext Primary(CUdevice device) {
  return reinterpret_cast<CUcontext>(uintptr_t{0x10} +
                                     static_cast<uintptr_t>(device));
}

thread_local CUcontext current_context = nullptr;

class Driver : public FakeDriver {
 public:
  using Work = EmulatedMachine::Work;

  void Reset(const FakeBackendOptions& options) override {
    options_ = options;
    machine_ = std::make_unique<EmulatedMachine>(options.seed);
    free_queues_.clear();
    default_stream_ = CUstream_st{machine_->AddQueue()};
    pinned_.clear();
    calls_.clear();
    problem_.clear();
    capture_ = nullptr;
    rejected_.clear();
    behind_ = host_functions_ = 0;
  }
  int64_t work_behind_host_functions() const override { return behind_; }
  int64_t captured_host_functions() const override { return host_functions_; }
  void Count(const FakeCapture& capture) {
    behind_ += capture.work_behind_host_functions();
    host_functions_ += capture.host_functions();
  }
  void Reject(const std::string& name, int times) override {
    rejected_[name] = times;
  }
  std::vector<std::string> TakeCalls() override {
    return std::exchange(calls_, {});
  }
  std::string problem() const override { return problem_; }
  CUresult LaunchHost(CUstream stream, CUhostFn function, void* data) override {
    return Call("cuLaunchHostFunc", [&] {
      return Enqueue(
          stream, [function, data](int, const QueueClock&) { function(data); });
    });
  }
  void CompileTexts() override { machine_->CompileTexts(); }
  int64_t used_bytes() const override { return machine_->used_bytes(); }
  int64_t pinned_bytes() const override {
    return std::accumulate(
        pinned_.begin(), pinned_.end(), int64_t{0},
        [](int64_t sum, const auto& block) { return sum + block.second; });
  }

  const FakeBackendOptions& options() const { return options_; }
  EmulatedMachine& machine() { return *machine_; }

  // Counts a call and returns the result of `act`, or an error.
  template <typename Act>
  CUresult Call(const char* name, Act act) {
    return CallUnrejected(name, [&] {
      return IsRejected(name) ? CUDA_ERROR_NOT_SUPPORTED : act();
    });
  }
  // Like Call, but leaves rejected calls to `act`.
  template <typename Act>
  CUresult CallUnrejected(const char* name, Act act) {
    calls_.emplace_back(name);
    if (current_context == nullptr) {
      return Break(CUDA_ERROR_INVALID_CONTEXT,
                   std::string(name) + " without a context");
    }
    try {
      return act();
    } catch (const std::exception& error) {
      return Break(CUDA_ERROR_LAUNCH_FAILED, error.what());
    }
  }
  // Like Call, but fails while a stream captures.
  template <typename Act>
  CUresult CallUncaptured(const char* name, Act act) {
    return Call(name, [&] {
      return capture_ == nullptr
                 ? act()
                 : Break(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                         std::string(name) + " while a stream captures");
    });
  }

  bool IsRejected(const std::string& name) {
    const auto it = rejected_.find(name);
    if (it == rejected_.end() || it->second == 0) return false;
    const bool of_captures =
        name == "cuStreamBeginCapture" || name.starts_with("cuGraph");
    if (capture_ == nullptr && !of_captures) return false;
    --it->second;
    return invalid_ = true;
  }
  // Returns whether a call was rejected since the last TakeInvalid.
  bool TakeInvalid() { return std::exchange(invalid_, false); }

  CUresult Break(CUresult result, const std::string& what) {
    if (problem_.empty()) problem_ = what;
    return result;
  }

  CUstream_st& Stream(CUstream stream) {
    return stream == nullptr ? default_stream_ : *stream;
  }

  CUresult Enqueue(CUstream to, Work work, bool of_host = false) {
    CUstream_st& stream = Stream(to);
    if (stream.capture != nullptr) {
      stream.capture->Add(&stream, std::move(work), of_host);
    } else {
      machine_->Add(stream.queue, std::move(work));
    }
    return CUDA_SUCCESS;
  }

  CUresult CopyWithin(CUdeviceptr pointer, size_t bytes, const char* name) {
    const auto* begin = reinterpret_cast<const char*>(pointer);
    return machine_->Owns(begin, static_cast<int64_t>(bytes))
               ? CUDA_SUCCESS
               : Break(CUDA_ERROR_INVALID_VALUE,
                       std::string(name) + " outside of device memory");
  }
  bool IsPinned(const void* pointer, size_t bytes) const {
    const auto* begin = static_cast<const char*>(pointer);
    auto it = pinned_.upper_bound(begin);
    if (it == pinned_.begin()) return false;
    --it;
    return begin + bytes <= it->first + it->second;
  }
  void Pin(const char* begin, size_t bytes) {
    pinned_[begin] = static_cast<int64_t>(bytes);
  }
  bool Unpin(const char* begin) { return pinned_.erase(begin) > 0; }

  int TakeQueue() {
    if (free_queues_.empty()) return machine_->AddQueue();
    const int queue = free_queues_.back();
    free_queues_.pop_back();
    return queue;
  }
  void FreeQueue(int queue) { free_queues_.push_back(queue); }
  // Only one stream may capture at a time.
  void Open(std::shared_ptr<const FakeCapture> capture) {
    capture_ = std::move(capture);
  }
  void Close() { capture_ = nullptr; }
  bool IsOpen(const FakeCapture& capture) const {
    return capture_.get() == &capture;
  }

 private:
  FakeBackendOptions options_;
  std::unique_ptr<EmulatedMachine> machine_;
  CUstream_st default_stream_;
  std::vector<int> free_queues_;
  std::map<const char*, int64_t> pinned_;
  std::vector<std::string> calls_;
  std::string problem_;
  std::shared_ptr<const FakeCapture> capture_;
  std::map<std::string, int> rejected_;
  bool invalid_ = false;
  int64_t behind_ = 0;
  int64_t host_functions_ = 0;
};

Driver& The() {
  static Driver driver;
  return driver;
}

// Counts the parameters that an entry's text declares.
size_t CountParams(const std::string& text, const std::string& entry) {
  const size_t begin = text.find(" " + entry + "(");
  if (begin == std::string::npos) return 0;
  const size_t end = text.find(')', begin);
  return 1 + std::count(text.begin() + begin, text.begin() + end, ',');
}

void RunKernel(const CUfunc_st& function, const codegen::CudaLaunch& launch,
               const std::vector<void*>& args) {
  std::vector<EmulatedBuffer> buffers;
  for (void* arg : args) {
    const int64_t bytes =
        The().machine().BytesFrom(static_cast<const char*>(arg));
    buffers.push_back({arg, bytes, true, true});
  }
  The().machine().Launch(*function.text, std::span(&launch, 1), buffers);
}

}  // namespace
}  // namespace fusor::test

using fusor::test::CountParams;
using fusor::test::current_context;
using fusor::test::Primary;
using fusor::test::QueueClock;
using fusor::test::The;

extern "C" {

fusor::test::FakeDriver* FusorFakeDriver() { return &The(); }

// --- Queries -----------------------------------------------------------------

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }

// NVRTC calls this on any driver it finds, and accepts the error.
CUresult cuGetExportTable(const void**, const CUuuid*) {
  return CUDA_ERROR_NOT_FOUND;
}

CUresult cuDriverGetVersion(int* version) {
  *version = The().options().version;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** name) {
  static const std::map<CUresult, const char*> names = {
      {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
      {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
      {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
      {CUDA_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
      {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
      {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED"},
      {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},
      {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
       "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
      {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
       "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
      {CUDA_ERROR_STREAM_CAPTURE_MERGE, "CUDA_ERROR_STREAM_CAPTURE_MERGE"},
      {CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
       "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"},
      {CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
       "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"},
      {CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
       "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"},
      {CUDA_ERROR_CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT"}};
  const auto it = names.find(error);
  if (it == names.end()) return CUDA_ERROR_INVALID_VALUE;
  *name = it->second;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  static std::string problem;
  problem = error == CUDA_ERROR_NOT_SUPPORTED ? "operation not supported"
                                              : The().problem();
  *text = problem.c_str();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  *count = The().options().devices;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  const bool known = ordinal >= 0 && ordinal < The().options().devices;
  return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetName(char* name, int bytes, CUdevice device) {
  const std::string number =
      The().options().devices > 1 ? " " + std::to_string(device) : "";
  std::snprintf(name, static_cast<size_t>(bytes), "%s%s",
                The().options().name.c_str(), number.c_str());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute,
                              CUdevice) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = The().options().major;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      *value = The().options().minor;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      *value = 132;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = Primary(device);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }

CUresult cuCtxSetCurrent(CUcontext context) {
  current_context = context;
  for (int device = 0; device < The().options().devices; ++device) {
    if (context == Primary(device)) return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxSynchronize() {
  return The().CallUncaptured("cuCtxSynchronize", [] {
    The().machine().RunAll();
    return CUDA_SUCCESS;
  });
}

CUresult cuMemGetInfo(size_t* free, size_t* total) {
  *total = static_cast<size_t>(The().options().memory_bytes);
  *free = *total - static_cast<size_t>(The().used_bytes());
  return CUDA_SUCCESS;
}

// --- Memory ------------------------------------------------------------------

CUresult cuMemAlloc(CUdeviceptr* pointer, size_t bytes) {
  return The().CallUncaptured("cuMemAlloc", [&] {
    size_t free = 0;
    size_t total = 0;
    cuMemGetInfo(&free, &total);
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (bytes > free) return CUDA_ERROR_OUT_OF_MEMORY;
    constexpr size_t kAlignment = 256;
    char* memory = static_cast<char*>(std::aligned_alloc(
        kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment));
    std::memset(memory, 0xff, bytes);
    The().machine().AddMemory(memory, static_cast<int64_t>(bytes));
    *pointer = reinterpret_cast<CUdeviceptr>(memory);
    return CUDA_SUCCESS;
  });
}

// Like a real driver, waits until the device is idle.
CUresult cuMemFree(CUdeviceptr pointer) {
  return The().CallUncaptured("cuMemFree", [&] {
    The().machine().RunAll();
    char* memory = reinterpret_cast<char*>(pointer);
    if (memory == nullptr) return CUDA_SUCCESS;
    The().machine().RemoveMemory(memory);
    std::free(memory);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemHostAlloc(void** pointer, size_t bytes, unsigned) {
  return The().CallUncaptured("cuMemHostAlloc", [&] {
    *pointer = std::malloc(bytes);
    The().Pin(static_cast<char*>(*pointer), bytes);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemFreeHost(void* pointer) {
  return The().CallUncaptured("cuMemFreeHost", [&] {
    The().machine().RunAll();
    if (!The().Unpin(static_cast<char*>(pointer))) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    std::free(pointer);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemsetD8Async(CUdeviceptr pointer, unsigned char value, size_t bytes,
                         CUstream stream) {
  return The().Call("cuMemsetD8Async", [&] {
    const CUresult result = The().CopyWithin(pointer, bytes, "cuMemsetD8Async");
    if (result != CUDA_SUCCESS) return result;
    return The().Enqueue(stream, [=](int, const QueueClock&) {
      std::memset(reinterpret_cast<void*>(pointer), value, bytes);
    });
  });
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t bytes,
                           CUstream stream) {
  return The().Call("cuMemcpyHtoDAsync", [&] {
    const CUresult result = The().CopyWithin(to, bytes, "cuMemcpyHtoDAsync");
    if (result != CUDA_SUCCESS) return result;
    if (!The().IsPinned(from, bytes)) {
      return The().Break(CUDA_ERROR_INVALID_VALUE,
                         "cuMemcpyHtoDAsync of memory that is not pinned");
    }
    return The().Enqueue(stream, [=](int, const QueueClock&) {
      std::memcpy(reinterpret_cast<void*>(to), from, bytes);
    });
  });
}

CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t bytes,
                           CUstream stream) {
  return The().Call("cuMemcpyDtoHAsync", [&] {
    const CUresult result = The().CopyWithin(from, bytes, "cuMemcpyDtoHAsync");
    if (result != CUDA_SUCCESS) return result;
    return The().Enqueue(stream, [=](int, const QueueClock&) {
      if (bytes > 0) {  // `to` may be null
        std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
      }
    });
  });
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                           CUstream stream) {
  return The().Call("cuMemcpyDtoDAsync", [&] {
    for (const CUdeviceptr pointer : {to, from}) {
      const CUresult result =
          The().CopyWithin(pointer, bytes, "cuMemcpyDtoDAsync");
      if (result != CUDA_SUCCESS) return result;
    }
    return The().Enqueue(stream, [=](int, const QueueClock&) {
      std::memcpy(reinterpret_cast<void*>(to),
                  reinterpret_cast<const void*>(from), bytes);
    });
  });
}

// --- Streams and events ------------------------------------------------------

CUresult cuStreamCreate(CUstream* stream, unsigned) {
  return The().CallUncaptured("cuStreamCreate", [&] {
    *stream = new CUstream_st{The().TakeQueue()};
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return CUDA_SUCCESS;
}

// Records streams of high priority under another name.
CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned, int priority) {
  const char* name =
      priority < 0 ? "cuStreamCreateWithPriority" : "cuStreamCreate";
  return The().CallUncaptured(name, [&] {
    *stream = new CUstream_st{The().TakeQueue()};
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamDestroy(CUstream stream) {
  return The().CallUncaptured("cuStreamDestroy", [&] {
    The().machine().RunAll();
    The().FreeQueue(stream->queue);
    delete stream;
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamSynchronize(CUstream stream) {
  return The().CallUncaptured("cuStreamSynchronize", [&] {
    const int queue = The().Stream(stream).queue;
    The().machine().RunUntil(The().machine().Record(queue));
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
  return The().Call("cuStreamWaitEvent", [&] {
    CUstream_st& waiting = The().Stream(stream);
    if (event->capture != nullptr) {
      if (!The().IsOpen(*event->capture)) {
        return The().Break(CUDA_ERROR_CAPTURED_EVENT,
                           "an event of a capture that has ended");
      }
      if (waiting.capture != nullptr && waiting.capture != event->capture) {
        return The().Break(CUDA_ERROR_STREAM_CAPTURE_MERGE,
                           "captures that wait for each other");
      }
      waiting.capture = event->capture;
      waiting.capture->Wait(&waiting, event->record);
      return CUDA_SUCCESS;
    }
    if (waiting.capture != nullptr) {
      return The().Break(CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
                         "a capture that waits for what is not part of it");
    }
    The().machine().Wait(waiting.queue, event->last);
    return CUDA_SUCCESS;
  });
}

CUresult cuEventCreate(CUevent* event, unsigned flags) {
  return The().Call("cuEventCreate", [&] {
    *event = new CUevent_st{(flags & CU_EVENT_DISABLE_TIMING) == 0};
    return CUDA_SUCCESS;
  });
}

CUresult cuEventDestroy(CUevent event) {
  return The().Call("cuEventDestroy", [&] {
    delete event;
    return CUDA_SUCCESS;
  });
}

CUresult cuEventRecord(CUevent event, CUstream from) {
  return The().Call("cuEventRecord", [&] {
    CUstream_st& stream = The().Stream(from);
    event->capture = stream.capture;
    if (stream.capture != nullptr) {
      event->record = stream.capture->Record(&stream);
    } else {
      event->last = The().machine().Record(stream.queue);
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuEventQuery(CUevent event) {
  if (event->capture != nullptr) return CUDA_ERROR_CAPTURED_EVENT;
  const bool happened = event->last == nullptr || event->last->happened;
  return happened ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent event) {
  return The().CallUncaptured("cuEventSynchronize", [&] {
    if (event->capture != nullptr) {
      return The().Break(CUDA_ERROR_CAPTURED_EVENT,
                         "cuEventSynchronize of an event of a capture");
    }
    if (event->last != nullptr) The().machine().RunUntil(event->last);
    return CUDA_SUCCESS;
  });
}

// Counts one millisecond per work item.
CUresult cuEventElapsedTime(float* ms, CUevent start, CUevent end) {
  return The().Call("cuEventElapsedTime", [&] {
    for (const CUevent event : {start, end}) {
      if (!event->timing || event->last == nullptr ||
          event->capture != nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
      }
      if (!event->last->happened) return CUDA_ERROR_NOT_READY;
    }
    *ms = 0;
    for (size_t q = 0; q < start->last->clock.size(); ++q) {
      *ms += static_cast<float>(end->last->clock[q] - start->last->clock[q]);
    }
    return CUDA_SUCCESS;
  });
}

// --- Kernels and graphs ------------------------------------------------------

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  return The().CallUncaptured("cuModuleLoadData", [&] {
    const std::string text = static_cast<const char*>(image);
    if (!text.starts_with("// fusor kernel")) {
      return The().Break(CUDA_ERROR_NO_BINARY_FOR_GPU,
                         "an image that is no kernel's text");
    }
    *module = new CUmod_st{The().machine().AddText(text)};
    return CUDA_SUCCESS;
  });
}

CUresult cuModuleUnload(CUmodule module) {
  return The().CallUncaptured("cuModuleUnload", [&] {
    The().machine().RunAll();
    delete module;
    return CUDA_SUCCESS;
  });
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module,
                             const char* name) {
  return The().CallUncaptured("cuModuleGetFunction", [&] {
    const size_t params = CountParams(*module->text, name);
    if (params == 0) {
      return The().Break(CUDA_ERROR_NOT_FOUND, std::string("no entry ") + name);
    }
    module->functions.push_back(
        std::make_unique<CUfunc_st>(CUfunc_st{module->text, name, params}));
    *function = module->functions.back().get();
    return CUDA_SUCCESS;
  });
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute,
                            int value) {
  return The().CallUncaptured("cuFuncSetAttribute", [&] {
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES ||
        value < 0 || value > fusor::codegen::kMaxSharedBytes) {
      return The().Break(CUDA_ERROR_INVALID_VALUE,
                         "cuFuncSetAttribute of another attribute, or for too "
                         "much shared memory");
    }
    function->dynamic_bytes = static_cast<unsigned>(value);
    return CUDA_SUCCESS;
  });
}

CUresult cuLaunchKernel(CUfunction function, unsigned x, unsigned y, unsigned z,
                        unsigned block_x, unsigned block_y, unsigned block_z,
                        unsigned shared_bytes, CUstream stream, void** params,
                        void** extra) {
  return The().Call("cuLaunchKernel", [&] {
    if (y * z * block_y * block_z != 1 ||
        shared_bytes >
            std::max<int64_t>(function->dynamic_bytes,
                              fusor::codegen::BlockMemory::kStaticBytes) ||
        extra != nullptr || x == 0 || block_x == 0 || block_x > 1024) {
      return The().Break(CUDA_ERROR_INVALID_VALUE,
                         "cuLaunchKernel with another shape");
    }
    std::vector<void*> args;
    for (size_t i = 0; i < function->num_params; ++i) {
      args.push_back(*static_cast<void**>(params[i]));
    }
    const fusor::codegen::CudaLaunch launch{
        function->entry, x, static_cast<int>(block_x), shared_bytes};
    return The().Enqueue(
        stream, [function = *function, launch, args](int, const QueueClock&) {
          fusor::test::RunKernel(function, launch, args);
        });
  });
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  return The().Call("cuLaunchHostFunc", [&] {
    return The().Enqueue(
        stream, [function, data](int, const QueueClock&) { function(data); },
        /*of_host=*/true);
  });
}

CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
  return The().CallUncaptured("cuStreamBeginCapture", [&] {
    // Global mode would affect NCCL's and other threads.
    if (stream == nullptr || mode == CU_STREAM_CAPTURE_MODE_GLOBAL) {
      return The().Break(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                         "a capture of the default stream, or of all threads");
    }
    stream->capture = std::make_shared<fusor::test::FakeCapture>(stream);
    The().TakeInvalid();
    The().Open(stream->capture);
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  // Ends the capture even if the call is rejected.
  return The().CallUnrejected("cuStreamEndCapture", [&] {
    const bool rejected = The().IsRejected("cuStreamEndCapture");
    *graph = nullptr;
    const auto capture = stream->capture;
    if (capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
    if (!capture->IsOrigin(stream)) {
      return The().Break(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
                         "a capture ended on another stream than it began");
    }
    for (const CUstream_st* joined : capture->streams()) {
      const_cast<CUstream_st*>(joined)->capture = nullptr;
    }
    The().Close();
    if (rejected) return CUDA_ERROR_NOT_SUPPORTED;
    if (The().TakeInvalid()) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (!capture->Joined()) {
      return The().Break(CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
                         "a capture ended before a stream that it forked");
    }
    The().Count(*capture);
    *graph = new CUgraph_st{capture};
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphInstantiate(CUgraphExec* executable, CUgraph graph,
                            unsigned long long) {
  return The().CallUncaptured("cuGraphInstantiate", [&] {
    auto* made = new CUgraphExec_st{graph->work};
    for (int b = 1; b < graph->work->num_branches(); ++b) {
      made->queues.push_back(The().TakeQueue());
    }
    *executable = made;
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphUpload(CUgraphExec, CUstream) {
  return The().CallUncaptured("cuGraphUpload", [] { return CUDA_SUCCESS; });
}

CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) {
  return The().CallUncaptured("cuGraphLaunch", [&] {
    std::vector<int> queues{The().Stream(stream).queue};
    queues.insert(queues.end(), graph->queues.begin(), graph->queues.end());
    graph->work->Replay(The().machine(), queues);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphExecDestroy(CUgraphExec graph) {
  return The().Call("cuGraphExecDestroy", [&] {
    The().machine().RunAll();
    for (const int queue : graph->queues) The().FreeQueue(queue);
    delete graph;
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphDestroy(CUgraph graph) {
  return The().Call("cuGraphDestroy", [&] {
    delete graph;
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
