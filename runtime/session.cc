#include "runtime/session.h"

#include <algorithm>
#include <array>

#include "codegen/compiler.h"
#include "ir/interpreter/host_tensor.h"
#include "ir/shard.h"
#include "ir/support/environment.h"
#include "ir/support/error.h"
#include "runtime/executor.h"
#include "runtime/part_updates.h"

namespace fusor::runtime {

using codegen::ArenaKind;
using codegen::Plan;
using codegen::StateLayout;

// A compiled graph with its own input and output arenas.
struct Session::Program {
  codegen::CompiledProgram compiled;
  std::unique_ptr<Executor> executor;
  std::vector<std::unique_ptr<Memory>> arenas;  // null where shared
  ArenaBases bases;
  PartUpdates parts;
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
    : backend_(backend),
      backend_options_(options),
      device_(backend.OpenDevice(0, options)),
      stream_(device_->CreateStream()),
      compiler_(backend.CreateCompiler("", options)),
      communicator_(communicator) {}

Session::~Session() = default;

int Session::AddProgram(std::unique_ptr<ir::Graph> forward,
                        codegen::ProgramKind kind,
                        const codegen::CompileOptions& options) {
  codegen::CompileOptions with_state = options;
  if (!programs_.empty()) with_state.state = &state_layout_;
  if (with_state.memory_limit_bytes == 0) {
    with_state.memory_limit_bytes =
        static_cast<int64_t>(device_->free_bytes()) +
        (state_ == nullptr ? 0 : state_layout_.bytes) +
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
  if (programs_.empty()) state_layout_ = StateOf(compiled.plan);
  CheckState(compiled.plan);
  programs_.push_back(std::make_unique<Program>());
  programs_.back()->compiled = std::move(compiled);
  programs_.back()->parts = PartUpdatesOf(programs_.back()->compiled.plan);
  PlaceArenas(*programs_.back(), poison);
  return static_cast<int>(programs_.size()) - 1;
}

void Session::CheckState(const Plan& plan) const {
  for (const StateLayout::Entry& entry : StateOf(plan).entries) {
    const StateLayout::Entry* here = state_layout_.Find(entry.name);
    FUSOR_CHECK(
        here != nullptr && here->type == entry.type &&
            here->offset == entry.offset,
        kGraph, "program {}: state {}: expected {}, got {} at byte {}",
        plan.name, entry.name,
        here == nullptr
            ? "none"
            : fmt::format("{} at byte {}", ToString(here->type), here->offset),
        ToString(entry.type), entry.offset);
  }
}

// Allocates the state with the first program. Grows the temporary arena to the
// largest program's; earlier programs are then bound again.
void Session::PlaceArenas(Program& program, bool poison) {
  const Plan& plan = program.compiled.plan;
  bool moved = false;
  for (const codegen::Arena& arena : plan.arenas) {
    const size_t bytes = std::max<size_t>(static_cast<size_t>(arena.bytes), 1);
    program.arenas.emplace_back();
    if (arena.kind == ArenaKind::kState) {
      if (state_ == nullptr) state_ = AllocateShared(bytes);
    } else if (arena.kind == ArenaKind::kTemporary) {
      if (temporary_ == nullptr || temporary_->bytes() < bytes) {
        moved = temporary_ != nullptr;
        for (const auto& other : programs_) {
          if (other->executor != nullptr) other->executor->Unbind();
        }
        temporary_.reset();
        temporary_ = AllocateShared(bytes);
      }
    } else {
      program.arenas.back() = device_->Allocate(bytes);
    }
  }
  program.executor =
      std::make_unique<Executor>(plan, *device_, communicator_, poison);
  for (const auto& other : programs_) {
    if (!moved && other.get() != &program) continue;
    BindProgram(*other);
  }
}

// Allocates memory on which collectives operate.
std::unique_ptr<Memory> Session::AllocateShared(size_t bytes) {
  return communicator_ == nullptr ? device_->Allocate(bytes)
                                  : communicator_->Allocate(*device_, bytes);
}

void Session::BindProgram(Program& program) {
  program.bases.clear();
  const Plan& plan = program.compiled.plan;
  for (size_t i = 0; i < plan.arenas.size(); ++i) {
    const ArenaKind kind = plan.arenas[i].kind;
    Memory* memory = kind == ArenaKind::kState       ? state_.get()
                     : kind == ArenaKind::kTemporary ? temporary_.get()
                                                     : program.arenas[i].get();
    program.bases.push_back(memory->data());
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

const StateLayout::Entry& Session::FindState(const std::string& name) const {
  const StateLayout::Entry* entry = state_layout_.Find(name);
  FUSOR_CHECK(entry != nullptr, kCheckpoint, "the model has no tensor {}",
              name);
  return *entry;
}

// Throws if a collective has failed, because awaited results are then invalid.
void Session::Synchronize() const {
  stream_->Synchronize();
  if (communicator_ != nullptr) communicator_->Check();
}

std::vector<float> Session::ReadState(const std::string& name) const {
  const StateLayout::Entry& entry = FindState(name);
  FUSOR_ASSERT(shown_ != Shown::kOld || !IsInParts(name),
               "{} is a step old: expected GatherParameters", name);
  std::vector<char> bytes(static_cast<size_t>(entry.type.num_bytes()));
  stream_->CopyToHost(bytes.data(),
                      static_cast<char*>(state_->data()) + entry.offset,
                      bytes.size());
  Synchronize();
  const ir::Tensor tensor = ir::LoadTensor(entry.type, bytes.data());
  return {tensor.data.begin(), tensor.data.end()};
}

void Session::WriteState(const std::string& name,
                         std::span<const float> values) {
  const StateLayout::Entry& entry = FindState(name);
  FUSOR_CHECK(static_cast<int64_t>(values.size()) == entry.type.num_elements(),
              kCheckpoint, "tensor {}: expected {} elements, got {}", name,
              entry.type.num_elements(), values.size());
  std::vector<double> elements(values.begin(), values.end());
  WriteCopies(name, elements);
  StoreState(entry, std::move(elements));
}

void Session::StoreState(const StateLayout::Entry& entry,
                         std::vector<double> elements) {
  std::vector<char> bytes(static_cast<size_t>(entry.type.num_bytes()));
  ir::StoreTensor({entry.type, std::move(elements)}, bytes.data());
  stream_->CopyToDevice(static_cast<char*>(state_->data()) + entry.offset,
                        bytes.data(), bytes.size());
  Synchronize();
}

ir::InputRole Session::StateRole(const std::string& name) const {
  const auto& inputs = plan(0).inputs;
  const auto it =
      std::find_if(inputs.begin(), inputs.end(),
                   [&](const auto& input) { return input.name == name; });
  FUSOR_ASSERT(it != inputs.end(), "state {}", name);
  return it->role;
}

void Session::CopyState(std::span<uint8_t> bytes) const {
  FUSOR_ASSERT(static_cast<int64_t>(bytes.size()) == state_layout_.bytes,
               "{} bytes for a state of {}", bytes.size(), state_layout_.bytes);
  FUSOR_ASSERT(shown_ == Shown::kParts,
               "parameters are not what their parts are: expected "
               "GatherParameters");
  stream_->CopyToHost(bytes.data(), state_->data(), bytes.size());
  Synchronize();
}

void Session::WriteStateBytes(const std::string& name,
                              std::span<const uint8_t> row_major) {
  const StateLayout::Entry& entry = FindState(name);
  if (IsShard(name)) {
    wholes_[name].assign(row_major.begin(), row_major.end());
    return StoreShard(name, row_major);
  }
  std::vector<uint8_t> bytes(static_cast<size_t>(entry.type.num_bytes()));
  ir::FromRowMajor(entry.type, row_major, bytes);
  stream_->CopyToDevice(static_cast<char*>(state_->data()) + entry.offset,
                        bytes.data(), bytes.size());
  Synchronize();
  if (!IsParameter(StateRole(name))) return;
  WriteCopies(name, ir::LoadTensor(LogicalType(name), row_major.data()).data);
}

int Session::rank() const {
  return communicator_ == nullptr ? 0 : communicator_->rank();
}

int Session::world_size() const {
  return communicator_ == nullptr ? 1 : communicator_->world_size();
}

void Session::Broadcast(int64_t offset, int64_t bytes) {
  if (world_size() == 1 || bytes == 0) return;
  communicator_->Run({.kind = CollectiveKind::kBroadcast,
                      .data = static_cast<char*>(state_->data()) + offset,
                      .elements = bytes,
                      .dtype = ir::DType::kU8},
                     *stream_);
  Synchronize();
}

void Session::BroadcastState() {
  shown_ = Shown::kParts;
  Broadcast(0, state_layout_.bytes);
  if (world_size() > 1) ScatterShards();
}

// Statistics are stored contiguously.
void Session::BroadcastStatistics() {
  int64_t begin = state_layout_.bytes;
  int64_t end = 0;
  for (const StateLayout::Entry& entry : state_layout_.entries) {
    if (StateRole(entry.name) != ir::InputRole::kStatistic) continue;
    begin = std::min(begin, entry.offset);
    end = std::max(end, entry.offset + entry.type.num_bytes());
  }
  Broadcast(begin, std::max<int64_t>(end - begin, 0));
}

void Session::SumOverRanks(std::span<double> numbers) {
  if (world_size() == 1) return;
  EnqueueSumOverRanks(numbers);
  Synchronize();
}

void Session::EnqueueSumOverRanks(std::span<double> numbers) {
  if (world_size() == 1) return;
  if (numbers_ == nullptr || numbers_->bytes() < numbers.size_bytes()) {
    numbers_ = device_->Allocate(numbers.size_bytes());
  }
  stream_->CopyToDevice(numbers_->data(), numbers.data(), numbers.size_bytes());
  communicator_->Run({.data = numbers_->data(),
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
  Begin(p);
  if (observer_ == nullptr) return executor.Run(*stream_);
  for (size_t i = 0; i < executor.num_steps(); ++i) {
    observer_->Before(*this, program, i);
    executor.RunStep(i, *stream_);
    Synchronize();
    observer_->After(*this, program, i);
  }
}

void Session::Begin(const Program& program) {
  FUSOR_ASSERT(program.parts.gathered_first || shown_ == Shown::kParts ||
                   (shown_ == Shown::kAverages && !program.parts.any),
               "program {} runs on parameters that are not what their parts "
               "are: expected GatherParameters",
               program.compiled.plan.name);
  if (program.parts.gathered_first) shown_ = Shown::kOld;
}

std::vector<uint8_t> Session::ReadBuffer(int program, int buffer) const {
  const Program& p = ProgramAt(program);
  CheckNumber(p.compiled.plan, "buffer", buffer,
              p.compiled.plan.buffers.size());
  const codegen::Buffer& b = p.compiled.plan.buffers[buffer];
  std::vector<uint8_t> bytes(static_cast<size_t>(b.bytes));
  stream_->CopyToHost(bytes.data(), p.executor->address(buffer), bytes.size());
  Synchronize();
  return codegen::Unpacked(b, std::move(bytes));
}

double Session::ReadScalar(int program, int output) {
  std::array<char, sizeof(double)> bytes{};
  const ir::DType dtype = EnqueueScalar(program, output, bytes.data());
  FUSOR_ASSERT(dtype == ir::DType::kF32 || dtype == ir::DType::kF64,
               "output {} is no floating scalar", output);
  Synchronize();
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

ir::DType Session::EnqueueScalarState(const std::string& name, void* to) {
  const StateLayout::Entry& entry = FindState(name);
  FUSOR_ASSERT(entry.type.num_elements() == 1, "{} is no scalar", name);
  stream_->CopyToHost(to, static_cast<char*>(state_->data()) + entry.offset,
                      static_cast<size_t>(entry.type.num_bytes()));
  return entry.type.dtype;
}

void Session::Record(Event& event) { stream_->Record(event); }

void Session::Await(Event& event) const {
  event.Synchronize();
  if (communicator_ != nullptr) communicator_->Check();
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
  Begin(p);
  p.executor->RunStep(step, *stream_);
}

std::vector<double> Session::ProfileStep(int program) {
  const Program& p = ProgramAt(program);
  Executor& executor = *p.executor;
  Begin(p);
  std::vector<std::unique_ptr<Event>> events;
  for (size_t i = 0; i <= executor.num_steps(); ++i) {
    events.push_back(device_->CreateEvent());
  }
  Synchronize();
  stream_->Record(*events[0]);
  for (size_t i = 0; i < executor.num_steps(); ++i) {
    executor.RunStep(i, *stream_);
    stream_->Record(*events[i + 1]);
  }
  Synchronize();
  std::vector<double> ms;
  for (size_t i = 0; i < executor.num_steps(); ++i) {
    ms.push_back(events[i + 1]->ElapsedMs(*events[i]));
  }
  return ms;
}

}  // namespace fusor::runtime
