#include "runtime/session.h"

#include <algorithm>
#include <array>

#include "codegen/compiler.h"
#include "ir/interpreter/host_tensor.h"
#include "ir/support/environment.h"
#include "ir/support/error.h"
#include "runtime/backend/communicator.h"
#include "runtime/executor.h"
#include "runtime/state_store.h"

namespace fusor::runtime {

using codegen::ArenaKind;
using codegen::Plan;

// A compiled graph with its own input and output arenas.
struct Session::Program {
  codegen::CompiledProgram compiled;
  std::unique_ptr<Executor> executor;
  std::vector<std::unique_ptr<Memory>> arenas;  // null where shared
  ArenaBases bases;
  ShardUpdates shards;
};

namespace {

// Throws unless `number` indexes one of the plan's `size` inputs, outputs, etc.
// Builds no string otherwise, because steps must not allocate.
void CheckNumber(const Plan& plan, const char* what, int64_t number,
                 size_t size) {
  FUSOR_CHECK(0 <= number && number < static_cast<int64_t>(size), kUsage,
              "program {}: {} {}: expected a number from 0, below {}",
              plan.name, what, number, size);
}

const codegen::PlanInput& InputAt(const Plan& plan, int input) {
  CheckNumber(plan, "input", input, plan.inputs.size());
  return plan.inputs[input];
}

const codegen::PlanOutput& OutputAt(const Plan& plan, int output) {
  CheckNumber(plan, "output", output, plan.outputs.size());
  return plan.outputs[output];
}

}  // namespace

Session::Session(Backend& backend, const BackendOptions& options,
                 Communicator* communicator)
    : device_(backend.OpenDevice(0, options)),
      stream_(device_->CreateStream()),
      compiler_(backend.CreateCompiler("", options)),
      ranks_{*device_, *stream_, communicator},
      state_(std::make_unique<StateStore>(ranks_, options.threads)) {}

Session::~Session() = default;

int Session::AddProgram(std::unique_ptr<ir::Graph> forward,
                        codegen::ProgramKind kind,
                        const codegen::CompileOptions& options) {
  codegen::CompileOptions with_state = options;
  if (!programs_.empty()) with_state.state = &state_->layout();
  if (with_state.memory_limit_bytes == 0) {
    with_state.memory_limit_bytes =
        static_cast<int64_t>(device_->free_bytes()) + state_->layout().bytes +
        (temporary_ == nullptr ? 0 : static_cast<int64_t>(temporary_->bytes()));
  }
  return AddCompiled(Compile(std::move(forward), kind, *compiler_, with_state),
                     options.verify || EnvironmentFlag("FUSOR_VERIFY"));
}

int Session::AddProgram(codegen::CompiledProgram compiled) {
  return AddCompiled(std::move(compiled), EnvironmentFlag("FUSOR_VERIFY"));
}

int Session::AddCompiled(codegen::CompiledProgram compiled, bool poison) {
  FUSOR_CHECK(compiled.graph != nullptr, kUsage,
              "session: program {}: expected a compiled graph, got null",
              compiled.plan.name);
  state_->Attach(compiled.plan);
  programs_.push_back(std::make_unique<Program>());
  programs_.back()->compiled = std::move(compiled);
  programs_.back()->shards = ShardUpdatesOf(programs_.back()->compiled.plan);
  PlaceArenas(*programs_.back(), poison);
  return static_cast<int>(programs_.size()) - 1;
}

// Grows the temporary arena to the largest program's; earlier programs are then
// bound again.
void Session::PlaceArenas(Program& program, bool poison) {
  const Plan& plan = program.compiled.plan;
  bool moved = false;
  for (const codegen::Arena& arena : plan.arenas) {
    const size_t bytes = std::max<size_t>(static_cast<size_t>(arena.bytes), 1);
    program.arenas.emplace_back();
    if (arena.kind == ArenaKind::kState) continue;
    if (arena.kind == ArenaKind::kTemporary) {
      if (temporary_ == nullptr || temporary_->bytes() < bytes) {
        moved = temporary_ != nullptr;
        for (const auto& other : programs_) {
          if (other->executor != nullptr) other->executor->Unbind();
        }
        temporary_.reset();
        temporary_ = ranks_.AllocateShared(bytes);
      }
    } else {
      program.arenas.back() = device_->Allocate(bytes);
    }
  }
  program.executor =
      std::make_unique<Executor>(plan, *device_, ranks_.communicator, poison);
  for (const auto& other : programs_) {
    if (!moved && other.get() != &program) continue;
    BindProgram(*other);
  }
}

void Session::BindProgram(Program& program) {
  program.bases.clear();
  const Plan& plan = program.compiled.plan;
  for (size_t i = 0; i < plan.arenas.size(); ++i) {
    const ArenaKind kind = plan.arenas[i].kind;
    program.bases.push_back(kind == ArenaKind::kState ? state_->data()
                            : kind == ArenaKind::kTemporary
                                ? temporary_->data()
                                : program.arenas[i]->data());
  }
  program.executor->Bind(program.bases, *stream_);
}

Session::Program& Session::ProgramAt(int program) const {
  FUSOR_CHECK(0 <= program && program < static_cast<int>(programs_.size()),
              kUsage, "session: program {}: expected a number from 0, below {}",
              program, programs_.size());
  return *programs_[program];
}

const Plan& Session::plan(int program) const {
  return ProgramAt(program).compiled.plan;
}

const codegen::CompileReport& Session::report(int program) const {
  return ProgramAt(program).compiled.report;
}

const ir::Graph& Session::graph(int program) const {
  return *ProgramAt(program).compiled.graph;
}

int Session::rank() const { return ranks_.rank(); }

int Session::world_size() const { return ranks_.world_size(); }

std::vector<uint8_t> Session::AllGather(std::span<const uint8_t> own) const {
  return ranks_.AllGather(own);
}

void Session::AllReduce(std::span<double> numbers) {
  if (world_size() == 1) return;
  EnqueueAllReduce(numbers);
  ranks_.Synchronize();
}

void Session::EnqueueAllReduce(std::span<double> numbers) {
  if (world_size() == 1) return;
  if (numbers_ == nullptr || numbers_->bytes() < numbers.size_bytes()) {
    numbers_ = device_->Allocate(numbers.size_bytes());
  }
  stream_->CopyToDevice(numbers_->data(), numbers.data(), numbers.size_bytes());
  ranks_.communicator->Run({.data = numbers_->data(),
                            .elements = static_cast<int64_t>(numbers.size()),
                            .dtype = ir::DType::kF64},
                           *stream_);
  stream_->CopyToHost(numbers.data(), numbers_->data(), numbers.size_bytes());
}

bool Session::HasInput(int program, const std::string& name) const {
  const auto& inputs = plan(program).inputs;
  return std::any_of(inputs.begin(), inputs.end(),
                     [&](const auto& input) { return input.name == name; });
}

int Session::FindInput(int program, const std::string& name) const {
  const auto& inputs = plan(program).inputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].name == name) return static_cast<int>(i);
  }
  FUSOR_CHECK(false, kGraph, "program {}: no input {}", plan(program).name,
              name);
}

int Session::FindOutput(int program, const std::string& name) const {
  const auto& outputs = plan(program).outputs;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].name == name) return static_cast<int>(i);
  }
  FUSOR_CHECK(false, kGraph, "program {}: no output {}", plan(program).name,
              name);
}

void Session::SetInput(int program, int input, const void* data, size_t bytes) {
  stream_->CopyToDevice(InputAddress(program, input, data, bytes), data, bytes);
}

void Session::SetInput(int program, int input, const void* data, size_t bytes,
                       Event& copied) {
  stream_->CopyToDevice(InputAddress(program, input, data, bytes), data, bytes,
                        copied);
}

void* Session::InputAddress(int program, int input, const void* data,
                            size_t bytes) const {
  const Program& p = ProgramAt(program);
  const codegen::PlanInput& target = InputAt(p.compiled.plan, input);
  const codegen::Buffer& buffer = p.compiled.plan.buffers[target.buffer];
  FUSOR_CHECK(static_cast<int64_t>(bytes) == buffer.type.num_bytes(), kData,
              "input {}: expected {} bytes ({}), got {}", target.name,
              buffer.type.num_bytes(), ToString(buffer.type), bytes);
  FUSOR_CHECK(data != nullptr, kData, "input {}: expected data, got null",
              target.name);
  FUSOR_ASSERT(!buffer.packed, "input {} is packed", target.name);
  return p.executor->address(target.buffer);
}

StepObserver::~StepObserver() = default;

void Session::Step(int program) {
  const Program& p = ProgramAt(program);
  Executor& executor = *p.executor;
  state_->BeforeRun(p.compiled.plan, p.shards);
  if (observer_ == nullptr) return executor.Run(*stream_);
  for (size_t i = 0; i < executor.num_steps(); ++i) {
    observer_->Before(*this, program, i);
    executor.RunStep(i, *stream_);
    ranks_.Synchronize();
    observer_->After(*this, program, i);
  }
}

std::vector<uint8_t> Session::ReadBuffer(int program, int buffer) const {
  const Program& p = ProgramAt(program);
  CheckNumber(p.compiled.plan, "buffer", buffer,
              p.compiled.plan.buffers.size());
  const codegen::Buffer& b = p.compiled.plan.buffers[buffer];
  std::vector<uint8_t> bytes(static_cast<size_t>(b.bytes));
  stream_->CopyToHost(bytes.data(), p.executor->address(buffer), bytes.size());
  ranks_.Synchronize();
  return codegen::Unpacked(b, std::move(bytes));
}

double Session::ReadScalar(int program, int output) {
  std::array<char, sizeof(double)> bytes{};
  const ir::DType dtype = EnqueueScalar(program, output, bytes.data());
  FUSOR_ASSERT(dtype == ir::DType::kF32 || dtype == ir::DType::kF64,
               "output {} is no floating scalar", output);
  ranks_.Synchronize();
  return ir::LoadTensor({dtype, {}, {}}, bytes.data()).data[0];
}

std::unique_ptr<Memory> Session::AllocateHost(size_t bytes) {
  return device_->AllocateHost(bytes);
}

std::unique_ptr<Event> Session::CreateEvent() { return device_->CreateEvent(); }

ir::DType Session::EnqueueScalar(int program, int output, void* to) {
  const Program& p = ProgramAt(program);
  const int buffer = OutputAt(p.compiled.plan, output).buffer;
  const ir::TensorType& type = p.compiled.plan.buffers[buffer].type;
  FUSOR_ASSERT(type.num_elements() == 1, "output {} is no scalar", output);
  stream_->CopyToHost(to, p.executor->address(buffer),
                      static_cast<size_t>(type.num_bytes()));
  return type.dtype;
}

void Session::Record(Event& event) { stream_->Record(event); }

void Session::Await(Event& event) const {
  event.Synchronize();
  if (ranks_.communicator != nullptr) ranks_.communicator->Check();
}

ir::Tensor Session::ReadOutput(int program, int output) {
  const int buffer = OutputAt(plan(program), output).buffer;
  ir::Tensor tensor = ir::LoadTensor(plan(program).buffers[buffer].type,
                                     ReadBuffer(program, buffer).data());
  // The buffer may be of a view: another shape, same element order.
  tensor.type.shape = graph(program).outputs()[output].value->type().shape;
  return tensor;
}

void Session::RunStep(int program, size_t step) {
  const Program& p = ProgramAt(program);
  CheckNumber(p.compiled.plan, "step", static_cast<int64_t>(step),
              p.executor->num_steps());
  state_->BeforeRun(p.compiled.plan, p.shards);
  p.executor->RunStep(step, *stream_);
}

std::vector<double> Session::ProfileStep(int program) {
  const Program& p = ProgramAt(program);
  Executor& executor = *p.executor;
  state_->BeforeRun(p.compiled.plan, p.shards);
  std::vector<std::unique_ptr<Event>> events;
  for (size_t i = 0; i <= executor.num_steps(); ++i) {
    events.push_back(device_->CreateEvent());
  }
  ranks_.Synchronize();
  stream_->Record(*events[0]);
  for (size_t i = 0; i < executor.num_steps(); ++i) {
    executor.RunStep(i, *stream_);
    stream_->Record(*events[i + 1]);
  }
  ranks_.Synchronize();
  std::vector<double> ms;
  for (size_t i = 0; i < executor.num_steps(); ++i) {
    ms.push_back(events[i + 1]->ElapsedMs(*events[i]));
  }
  return ms;
}

}  // namespace fusor::runtime
