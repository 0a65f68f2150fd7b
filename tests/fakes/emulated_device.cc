#include "tests/fakes/emulated_device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "codegen/cuda/cuda_printer.h"
#include "ir/interpreter/host_tensor.h"
#include "ir/support/error.h"
#include "tests/fakes/emulated_machine.h"
#include "tests/testing/library_call.h"

namespace fusor::test {
namespace {

using MachinePtr = std::shared_ptr<EmulatedMachine>;

class EmulatedMemory : public runtime::Memory {
 public:
  EmulatedMemory(MachinePtr machine, size_t bytes)
      : machine_(std::move(machine)),
        bytes_(bytes),
        data_(static_cast<char*>(std::aligned_alloc(
            codegen::kBufferAlignment,
            codegen::PadToAlignment(static_cast<int64_t>(bytes))))) {
    FUSOR_ASSERT(data_ != nullptr, "no room for {} bytes", bytes);
    std::memset(data_, 0, bytes);
    machine_->AddMemory(data_, static_cast<int64_t>(bytes));
  }
  ~EmulatedMemory() override {
    machine_->RemoveMemory(data_);
    std::free(data_);
  }
  EmulatedMemory(const EmulatedMemory&) = delete;
  EmulatedMemory& operator=(const EmulatedMemory&) = delete;

  void* data() override { return data_; }
  size_t bytes() const override { return bytes_; }

 private:
  MachinePtr machine_;
  size_t bytes_;
  char* data_;
};

class EmulatedEvent : public runtime::Event {
 public:
  explicit EmulatedEvent(MachinePtr machine) : machine_(std::move(machine)) {}
  void Synchronize() override { machine_->RunAll(); }
  double ElapsedMs(const Event&) const override { return 0; }

  HappeningPtr last;  // most recent record

 private:
  MachinePtr machine_;
};

class EmulatedExecutable : public runtime::Executable {
 public:
  virtual size_t num_args() const = 0;
  virtual void Run(EmulatedMachine& machine, void* const* args) const = 0;
  // The plan's CompiledKernel or LibraryCall.
  virtual const void* origin() const = 0;
};

class EmulatedKernel : public EmulatedExecutable {
 public:
  EmulatedKernel(const codegen::CompiledKernel& kernel, const std::string* text)
      : kernel_(kernel), text_(text) {}
  size_t num_args() const override { return kernel_.kernel.buffers.size(); }
  void Run(EmulatedMachine& machine, void* const* args) const override {
    machine.Launch(*text_, kernel_.kernel, args);
  }
  const void* origin() const override { return &kernel_; }

 private:
  const codegen::CompiledKernel& kernel_;
  const std::string* text_;
};

class EmulatedCall : public EmulatedExecutable {
 public:
  explicit EmulatedCall(const codegen::LibraryCall& call) : call_(call) {}
  size_t num_args() const override {
    return call_.operands.size() + call_.results.size() +
           (call_.workspace_bytes > 0 ? 1 : 0);
  }
  void Run(EmulatedMachine&, void* const* args) const override {
    RunLibraryCall(call_, args);
  }
  const void* origin() const override { return &call_; }

 private:
  const codegen::LibraryCall& call_;
};

class EmulatedStream : public runtime::Stream {
 public:
  explicit EmulatedStream(MachinePtr machine)
      : machine_(std::move(machine)), queue_(machine_->AddQueue()) {}
  ~EmulatedStream() override { machine_->RemoveQueue(queue_); }

  void Launch(const runtime::Executable& executable, void* const* args,
              size_t num_args) override {
    const auto& work = static_cast<const EmulatedExecutable&>(executable);
    FUSOR_ASSERT(num_args == work.num_args(), "{} arguments, expected {}",
                 num_args, work.num_args());
    const auto watch = machine_->watch();
    const int step = watch ? watch->Issue(work.origin(), args) : 0;
    machine_->Add(queue_, [machine = machine_.get(), &work, watch, step,
                           held = std::vector<void*>(args, args + num_args)](
                              int queue, const QueueClock& clock) {
      if (watch) watch->Run(step, queue, clock);
      work.Run(*machine, held.data());
    });
  }
  // Copies `host` at once, since the caller may change it after the call.
  void CopyToDevice(void* device, const void* host, size_t bytes) override {
    FUSOR_ASSERT(
        machine_->Owns(static_cast<char*>(device), static_cast<int64_t>(bytes)),
        "a copy of {} bytes to what is not the device's", bytes);
    machine_->Add(queue_,
                  [device, held = std::string(static_cast<const char*>(host),
                                              bytes)](int, const QueueClock&) {
                    std::memcpy(device, held.data(), held.size());
                  });
  }
  void CopyToHost(void* host, const void* device, size_t bytes) override {
    FUSOR_ASSERT(machine_->Owns(static_cast<const char*>(device),
                                static_cast<int64_t>(bytes)),
                 "a copy of {} bytes from what is not the device's", bytes);
    machine_->Add(queue_, [host, device, bytes](int, const QueueClock&) {
      std::memcpy(host, device, bytes);
    });
  }
  void Record(runtime::Event& event) override {
    static_cast<EmulatedEvent&>(event).last = machine_->Record(queue_);
  }
  void Wait(const runtime::Event& event) override {
    machine_->Wait(queue_, static_cast<const EmulatedEvent&>(event).last);
  }
  void Synchronize() override { machine_->RunAll(); }

  int queue() const { return queue_; }

 private:
  MachinePtr machine_;
  int queue_;
};

class EmulatedGpu : public runtime::Device {
 public:
  EmulatedGpu(MachinePtr machine, int64_t memory_bytes)
      : machine_(std::move(machine)), memory_bytes_(memory_bytes) {}

  std::string description() const override { return "emulated GPU"; }
  std::unique_ptr<runtime::Memory> Allocate(size_t bytes) override {
    FUSOR_CHECK(bytes <= free_bytes(), kOutOfMemory,
                "emulated GPU: {} bytes asked for, {} free", bytes,
                free_bytes());
    return std::make_unique<EmulatedMemory>(machine_, bytes);
  }
  bool is_asynchronous() const override { return true; }
  size_t free_bytes() const override {
    return static_cast<size_t>(memory_bytes_ - machine_->used_bytes());
  }
  std::unique_ptr<runtime::Stream> CreateStream() override {
    return std::make_unique<EmulatedStream>(machine_);
  }
  std::unique_ptr<runtime::Event> CreateEvent() override {
    return std::make_unique<EmulatedEvent>(machine_);
  }
  std::unique_ptr<runtime::Executable> LoadKernel(
      const codegen::CompiledKernel& kernel) override {
    return std::make_unique<EmulatedKernel>(kernel,
                                            machine_->AddText(kernel.binary));
  }
  std::unique_ptr<runtime::Executable> LoadCall(
      const codegen::LibraryCall& call) override {
    return std::make_unique<EmulatedCall>(call);
  }

 private:
  MachinePtr machine_;
  int64_t memory_bytes_;
};

class EmulatedCommunicator : public runtime::Communicator {
 public:
  EmulatedCommunicator(MachinePtr machine, int world_size)
      : machine_(std::move(machine)),
        world_size_(world_size),
        queue_(machine_->AddQueue()) {}

  int rank() const override { return 0; }
  int world_size() const override { return world_size_; }
  std::string description() const override { return "emulated ranks"; }

  int64_t Start(const runtime::Collective& collective,
                runtime::Stream& stream) override {
    const int from = static_cast<EmulatedStream&>(stream).queue();
    const auto watch = machine_->watch();
    const int step = watch ? watch->IssueCollective(collective) : 0;
    machine_->Wait(queue_, machine_->Record(from));
    machine_->Add(queue_, [this, collective, watch, step](
                              int queue, const QueueClock& clock) {
      if (watch) watch->Run(step, queue, clock);
      Run(collective);
    });
    ended_.push_back(machine_->Record(queue_));
    return static_cast<int64_t>(ended_.size()) - 1;
  }
  void Wait(int64_t number, runtime::Stream& stream) override {
    machine_->Wait(static_cast<EmulatedStream&>(stream).queue(),
                   ended_.at(number));
  }
  void Abort(const std::string&) noexcept override {}
  std::vector<runtime::CollectiveTime> TakeTimes() override { return {}; }

 private:
  void Run(const runtime::Collective& collective) const {
    using Kind = runtime::CollectiveKind;
    switch (collective.kind) {
      case Kind::kAllReduce:
        return AllReduce(collective);
      case Kind::kAllGather:
      case Kind::kReduceScatter:
        for (int i = 0; i < collective.num_tensors; ++i) {
          Move(collective, collective.tensors[i]);
        }
        FUSOR_ASSERT(collective.num_tensors > 0, "a {} in place",
                     CollectiveName(collective.kind));
        return;
      case Kind::kBroadcast:
      case Kind::kBarrier:
        return;
    }
  }

  // Moves a shard for rank 0. Every rank has the same data.
  void Move(const runtime::Collective& collective,
            const runtime::Collective::Tensor& tensor) const {
    const ir::DType dtype = collective.dtype;
    const ir::TensorType type{dtype, {tensor.part}, {}};
    auto* target = static_cast<char*>(tensor.target);
    if (collective.kind == runtime::CollectiveKind::kAllGather) {
      for (int r = 0; r < world_size_; ++r) {
        std::memcpy(target + r * type.num_bytes(), tensor.source,
                    static_cast<size_t>(type.num_bytes()));
      }
      return;
    }
    const int64_t there = std::min(tensor.part, tensor.elements);
    ir::Tensor part = ir::LoadTensor({dtype, {there}, {}}, tensor.source);
    for (double& x : part.data) x = ir::RoundTo(dtype, x * world_size_);
    part.type = type;
    part.data.resize(static_cast<size_t>(tensor.part), 0);
    ir::StoreTensor(part, target);
  }

  void AllReduce(const runtime::Collective& collective) const {
    const ir::TensorType type{collective.dtype, {collective.elements}, {}};
    ir::Tensor tensor = ir::LoadTensor(type, collective.data);
    for (double& x : tensor.data) {
      x = ir::RoundTo(collective.dtype, x * world_size_);
    }
    ir::StoreTensor(tensor, collective.data);
  }

  MachinePtr machine_;
  int world_size_;
  int queue_;
  std::vector<HappeningPtr> ended_;  // by collective
};

// Uses another compiler's plans, but the text of kernels as machine code.
class EmulatedCompiler : public codegen::TargetCompiler {
 public:
  explicit EmulatedCompiler(std::unique_ptr<codegen::TargetCompiler> planner)
      : planner_(std::move(planner)) {}
  const ir::Target& target() const override { return planner_->target(); }
  std::vector<ir::LibraryCandidate> Candidates(
      const ir::Node& node) const override {
    return planner_->Candidates(node);
  }
  std::string CompileKernel(const codegen::Kernel& kernel) const override {
    return TextOf(kernel);
  }
  codegen::CodegenFingerprint Codegen() const override {
    return planner_->Codegen();
  }
  void PrepareCall(codegen::LibraryCall& call) const override {
    planner_->PrepareCall(call);
  }
  std::vector<codegen::KernelArtifact> KernelArtifacts(
      const codegen::Kernel& kernel) const override {
    return {{".cu", TextOf(kernel)}};
  }
  std::string CompileArtifact(const codegen::Kernel&, const std::string& text,
                              const std::string&) const override {
    return text;
  }
  std::string LibraryVersion() const override {
    return planner_->LibraryVersion();
  }

 private:
  std::string TextOf(const codegen::Kernel& kernel) const {
    return PrintCuda(kernel, codegen::MatrixUnitOf(target()));
  }

  std::unique_ptr<codegen::TargetCompiler> planner_;
};

}  // namespace

EmulatedBackend::EmulatedBackend(EmulatedOptions options)
    : options_(std::move(options)),
      machine_(std::make_shared<EmulatedMachine>(options_.seed)) {}

EmulatedBackend::~EmulatedBackend() = default;

void EmulatedBackend::Expect(const codegen::Plan& plan) {
  machine_->Expect(plan);
}

int64_t EmulatedBackend::num_launches() const {
  return machine_->num_launches();
}

int64_t EmulatedBackend::num_texts() const {
  return static_cast<int64_t>(machine_->num_texts());
}

std::unique_ptr<runtime::Communicator> EmulatedBackend::Connect() {
  return std::make_unique<EmulatedCommunicator>(machine_, options_.world_size);
}

std::vector<std::string> EmulatedBackend::Diagnose() const {
  return {"runs the text of CUDA kernels on a CPU"};
}

std::unique_ptr<runtime::Device> EmulatedBackend::OpenDevice(
    int, const runtime::BackendOptions&) {
  return std::make_unique<EmulatedGpu>(machine_, options_.memory_bytes);
}

std::unique_ptr<codegen::TargetCompiler> EmulatedBackend::CreateCompiler(
    const std::string&, const runtime::BackendOptions&) {
  return std::make_unique<EmulatedCompiler>(options_.compiler());
}

}  // namespace fusor::test
