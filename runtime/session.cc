#include "runtime/session.h"

#include <algorithm>
#include <utility>

#include "codegen/compiler.h"
#include "ir/support/error.h"
#include "runtime/backend/communicator.h"
#include "runtime/program.h"
#include "runtime/state_store.h"

namespace fusor::runtime {

using codegen::ArenaKind;

Session::Session(Backend& backend, const BackendOptions& options,
                 Communicator* communicator)
    : device_(backend.OpenDevice(0, options)),
      stream_(device_->CreateStream()),
      compiler_(backend.CreateCompiler("", options)) {
  const RankDevice device{*device_, *stream_, communicator};
  state_ = std::make_unique<StateStore>(device, options.threads);
  context_ = std::make_unique<ProgramContext>(ProgramContext{device, *state_});
}

Session::~Session() = default;

Program& Session::Compile(std::unique_ptr<ir::Graph> forward,
                          codegen::ProgramKind kind,
                          const codegen::CompileOptions& options) {
  codegen::CompileOptions with_state = options;
  if (!programs_.empty()) with_state.state = &state_->layout();
  if (with_state.memory_limit_bytes == 0) {
    with_state.memory_limit_bytes =
        static_cast<int64_t>(device_->free_bytes()) + state_->layout().bytes +
        (temporary_ == nullptr ? 0 : static_cast<int64_t>(temporary_->bytes()));
  }
  return Add(codegen::Compile(std::move(forward), kind, *compiler_, with_state),
             options.verification == passes::Verification::kAll);
}

Program& Session::Load(codegen::CompiledProgram compiled) {
  return Add(std::move(compiled),
             passes::DefaultVerification() == passes::Verification::kAll);
}

Program& Session::Add(codegen::CompiledProgram compiled, bool poison) {
  FUSOR_CHECK(compiled.graph != nullptr, kUsage,
              "session: program {}: expected a compiled graph, got null",
              compiled.plan.name);
  state_->Attach(compiled.plan);
  auto added =
      std::make_unique<Program>(*context_, std::move(compiled), poison);
  const bool moved = GrowTemporary(*added);
  programs_.push_back(std::move(added));
  for (const auto& program : programs_) {
    if (moved || program == programs_.back()) program->Bind(temporary_.get());
  }
  return *programs_.back();
}

// Grows the temporary arena to what the program needs. Returns whether it has
// moved; all programs must then be bound again.
bool Session::GrowTemporary(const Program& program) {
  size_t bytes = 0;
  for (const codegen::Arena& arena : program.plan().arenas) {
    if (arena.kind != ArenaKind::kTemporary) continue;
    bytes = std::max<size_t>(static_cast<size_t>(arena.bytes), 1);
  }
  if (bytes == 0 || (temporary_ != nullptr && temporary_->bytes() >= bytes)) {
    return false;
  }
  for (const auto& other : programs_) other->Unbind();
  temporary_.reset();
  temporary_ = context_->device.AllocateShared(bytes);
  return true;
}

void Session::Observe(StepObserver* observer) { context_->observer = observer; }

bool Session::is_observed() const { return context_->observer != nullptr; }

int Session::rank() const { return context_->device.rank(); }

int Session::world_size() const { return context_->device.world_size(); }

std::vector<uint8_t> Session::AllGather(std::span<const uint8_t> own) const {
  return context_->device.AllGather(own);
}

void Session::AllReduce(std::span<double> numbers) {
  if (world_size() == 1) return;
  EnqueueAllReduce(numbers);
  context_->device.Synchronize();
}

void Session::EnqueueAllReduce(std::span<double> numbers) {
  if (world_size() == 1) return;
  if (numbers_ == nullptr || numbers_->bytes() < numbers.size_bytes()) {
    numbers_ = device_->Allocate(numbers.size_bytes());
  }
  stream_->CopyToDevice(numbers_->data(), numbers.data(), numbers.size_bytes());
  context_->device.communicator->Run(
      {.data = numbers_->data(),
       .elements = static_cast<int64_t>(numbers.size()),
       .dtype = ir::DType::kF64},
      *stream_);
  stream_->CopyToHost(numbers.data(), numbers_->data(), numbers.size_bytes());
}

std::unique_ptr<Memory> Session::AllocateHost(size_t bytes) {
  return device_->AllocateHost(bytes);
}

std::unique_ptr<Event> Session::CreateEvent() { return device_->CreateEvent(); }

void Session::Record(Event& event) { stream_->Record(event); }

void Session::Await(Event& event) const {
  event.Synchronize();
  if (context_->device.communicator != nullptr) {
    context_->device.communicator->Check();
  }
}

}  // namespace fusor::runtime
