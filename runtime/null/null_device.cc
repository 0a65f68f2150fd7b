#include "runtime/null/null_device.h"

#include <cstring>
#include <map>
#include <new>

#include "ir/support/error.h"

namespace fusor::null {
namespace {

// The state that a device's streams, events and memory share.
struct State {
  explicit State(NullLog& l) : log(l) {}

  // Returns "m2+640". Throws kInternal if the address is not the device's.
  std::string Name(const void* address) {
    const auto* byte = static_cast<const char*>(address);
    const std::lock_guard lock(mutex);
    auto it = memory.upper_bound(byte);
    FUSOR_ASSERT(it != memory.begin(), "null device: address {} is not its own",
                 address);
    const auto& [start, block] = *--it;
    FUSOR_ASSERT(byte < start + block.bytes,
                 "null device: address {} is not its own", address);
    return fmt::format("m{}+{}", block.number, byte - start);
  }

  struct Block {
    int number;
    size_t bytes;
  };
  NullLog& log;
  std::mutex mutex;
  std::map<const char*, Block> memory;
  int num_memories = 0;
  int num_streams = 0;
  int num_events = 0;
};

class NullMemory : public runtime::Memory {
 public:
  NullMemory(std::shared_ptr<State> state, size_t bytes)
      : state_(std::move(state)), bytes_(bytes) {
    data_ = static_cast<char*>(
        std::calloc(1, (bytes / kAlignment + 2) * kAlignment));
    FUSOR_CHECK(data_ != nullptr, kOutOfMemory,
                "null device: no room for {} bytes", bytes);
    const std::lock_guard lock(state_->mutex);
    number_ = state_->num_memories++;
    state_->memory[Start()] = {number_, bytes};
    state_->log.Add(fmt::format("allocate m{} {} bytes", number_, bytes));
  }
  ~NullMemory() override {
    {
      const std::lock_guard lock(state_->mutex);
      state_->memory.erase(Start());
    }
    state_->log.Add(fmt::format("free m{}", number_));
    std::free(data_);
  }
  NullMemory(const NullMemory&) = delete;
  NullMemory& operator=(const NullMemory&) = delete;

  void* data() override { return Start(); }
  size_t bytes() const override { return bytes_; }

 private:
  static constexpr size_t kAlignment = codegen::kBufferAlignment;

  char* Start() const {
    const auto address = reinterpret_cast<uintptr_t>(data_);
    return data_ + (kAlignment - address % kAlignment);
  }

  std::shared_ptr<State> state_;
  size_t bytes_;
  char* data_ = nullptr;
  int number_ = 0;
};

class NullEvent : public runtime::Event {
 public:
  NullEvent(std::shared_ptr<State> state, int number)
      : state_(std::move(state)), number_(number) {}
  void Synchronize() override {
    state_->log.Add(fmt::format("event e{} synchronize", number_));
  }
  double ElapsedMs(const Event&) const override { return 0; }
  int number() const { return number_; }

 private:
  std::shared_ptr<State> state_;
  int number_;
};

class NullExecutable : public runtime::Executable {
 public:
  NullExecutable(std::string what, size_t num_args)
      : what_(std::move(what)), num_args_(num_args) {}
  const std::string& what() const { return what_; }
  size_t num_args() const { return num_args_; }

 private:
  std::string what_;  // "launch fusion_0", "call matmul"
  size_t num_args_;
};

class NullStream : public runtime::Stream {
 public:
  NullStream(std::shared_ptr<State> state, int number)
      : state_(std::move(state)), number_(number) {}

  void Launch(const runtime::Executable& executable, void* const* args,
              size_t num_args) override {
    const auto& work = static_cast<const NullExecutable&>(executable);
    FUSOR_ASSERT(num_args == work.num_args(), "{}: {} arguments, expected {}",
                 work.what(), num_args, work.num_args());
    std::string line = work.what();
    for (size_t i = 0; i < num_args; ++i) line += " " + state_->Name(args[i]);
    Add(line);
  }
  void CopyToDevice(void* device, const void* host, size_t bytes) override {
    Add(fmt::format("to device {} {} bytes", state_->Name(device), bytes));
    std::memcpy(device, host, bytes);
  }
  void CopyToHost(void* host, const void* device, size_t bytes) override {
    Add(fmt::format("to host {} {} bytes", state_->Name(device), bytes));
    std::memcpy(host, device, bytes);
  }
  void Record(runtime::Event& event) override {
    Add(fmt::format("record e{}", static_cast<NullEvent&>(event).number()));
  }
  void Wait(const runtime::Event& event) override {
    Add(fmt::format("wait e{}", static_cast<const NullEvent&>(event).number()));
  }
  void Synchronize() override { Add("synchronize"); }

 private:
  void Add(const std::string& what) {
    state_->log.Add(fmt::format("stream {} {}", number_, what));
  }

  std::shared_ptr<State> state_;
  int number_;
};

class NullDevice : public runtime::Device {
 public:
  explicit NullDevice(NullLog& log) : state_(std::make_shared<State>(log)) {}

  std::string description() const override {
    return "null device, computes nothing";
  }
  std::unique_ptr<runtime::Memory> Allocate(size_t bytes) override {
    return std::make_unique<NullMemory>(state_, bytes);
  }
  size_t free_bytes() const override { return size_t{1} << 40; }
  std::unique_ptr<runtime::Stream> CreateStream() override {
    return std::make_unique<NullStream>(state_, state_->num_streams++);
  }
  std::unique_ptr<runtime::Event> CreateEvent() override {
    return std::make_unique<NullEvent>(state_, state_->num_events++);
  }
  std::unique_ptr<runtime::Executable> LoadKernel(
      const codegen::CompiledKernel& kernel) override {
    state_->log.Add("load kernel " + kernel.kernel.name);
    return std::make_unique<NullExecutable>("launch " + kernel.kernel.name,
                                            kernel.kernel.buffers.size());
  }
  std::unique_ptr<runtime::Executable> LoadCall(
      const codegen::LibraryCall& call) override {
    state_->log.Add("load call " + std::string(call.op_name()));
    const size_t workspaces = call.workspace_bytes > 0 ? 1 : 0;
    return std::make_unique<NullExecutable>(
        "call " + std::string(call.op_name()),
        call.operands.size() + call.results.size() + workspaces);
  }

 private:
  std::shared_ptr<State> state_;
};

}  // namespace

std::unique_ptr<runtime::Device> OpenNullDevice(NullLog& log) {
  return std::make_unique<NullDevice>(log);
}

}  // namespace fusor::null
