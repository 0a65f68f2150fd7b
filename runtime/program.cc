#include "runtime/program.h"

#include <algorithm>
#include <array>
#include <utility>

#include "codegen/compiler.h"
#include "ir/interpreter/host_tensor.h"
#include "ir/state_names.h"
#include "ir/support/error.h"
#include "runtime/executor.h"
#include "runtime/step_observer.h"

namespace fusor::runtime {

using codegen::ArenaKind;
using codegen::Plan;

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

StepObserver::~StepObserver() = default;

Program::Program(ProgramContext& context, codegen::CompiledProgram compiled,
                 bool poison)
    : context_(context),
      compiled_(
          std::make_unique<codegen::CompiledProgram>(std::move(compiled))),
      shards_(ShardUpdatesOf(compiled_->plan)) {
  for (size_t i = 0; i < plan().arenas.size(); ++i) {
    const ArenaKind kind = plan().arenas[i].kind;
    const bool shared =
        kind == ArenaKind::kState || kind == ArenaKind::kTemporary;
    arenas_.push_back(shared ? nullptr : AllocateArena(i));
  }
  executor_ = std::make_unique<Executor>(plan(), context_.device.device,
                                         context_.device.communicator, poison);
}

Program::~Program() = default;

std::unique_ptr<Memory> Program::AllocateArena(size_t arena) const {
  return context_.device.device.Allocate(
      std::max<size_t>(static_cast<size_t>(plan().arenas[arena].bytes), 1));
}

bool Program::IsPerSlot(size_t arena) const {
  const ArenaKind kind = plan().arenas[arena].kind;
  return kind == ArenaKind::kInput || kind == ArenaKind::kOutput;
}

void Program::Bind(Memory* temporary) {
  temporary_ = temporary;
  std::vector<ArenaBases> slots(ring_.size() + 1);
  for (size_t s = 0; s < slots.size(); ++s) {
    for (size_t i = 0; i < plan().arenas.size(); ++i) {
      const ArenaKind kind = plan().arenas[i].kind;
      slots[s].push_back(kind == ArenaKind::kState       ? context_.state.data()
                         : kind == ArenaKind::kTemporary ? temporary->data()
                         : s > 0 && IsPerSlot(i) ? ring_[s - 1][i]->data()
                                                 : arenas_[i]->data());
    }
  }
  executor_->Bind(slots, context_.device.stream);
}

void Program::Unbind() { executor_->Unbind(); }

void Program::SetGroup(int64_t steps) {
  FUSOR_ASSERT(steps >= 1, "a group of {} steps", steps);
  if (steps == group()) return;
  Unbind();
  context_.device.Synchronize();
  ring_.clear();
  size_t bytes = 0;  // of one slot
  for (size_t i = 0; i < plan().arenas.size(); ++i) {
    if (IsPerSlot(i)) bytes += static_cast<size_t>(plan().arenas[i].bytes);
  }
  // The next group's inputs are copied to the device while a group runs.
  const size_t needed = 2 * bytes * static_cast<size_t>(steps - 1);
  const size_t free = context_.device.device.free_bytes();
  FUSOR_CHECK(needed <= free, kOutOfMemory,
              "program {}: {} steps in one graph need {} bytes for further "
              "inputs, {} free: lower --cuda-graph-steps or the batch size",
              plan().name, steps, needed, free);
  for (int64_t s = 1; s < steps; ++s) {
    Arenas& arenas = ring_.emplace_back(plan().arenas.size());
    for (size_t i = 0; i < arenas.size(); ++i) {
      if (IsPerSlot(i)) arenas[i] = AllocateArena(i);
    }
  }
  Bind(temporary_);
}

const Plan& Program::plan() const { return compiled_->plan; }

const codegen::CompileReport& Program::report() const {
  return compiled_->report;
}

const ir::Graph& Program::graph() const { return *compiled_->graph; }

bool Program::HasInput(const std::string& name) const {
  const auto& inputs = plan().inputs;
  return std::any_of(inputs.begin(), inputs.end(),
                     [&](const auto& input) { return input.name == name; });
}

bool Program::HasOutput(const std::string& name) const {
  const auto& outputs = plan().outputs;
  return std::any_of(outputs.begin(), outputs.end(),
                     [&](const auto& output) { return output.name == name; });
}

int Program::FindInput(const std::string& name) const {
  const auto& inputs = plan().inputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].name == name) return static_cast<int>(i);
  }
  FUSOR_CHECK(false, kGraph, "program {}: no input {}", plan().name, name);
}

std::vector<int> Program::FindModelInputs() const {
  std::vector<int> found;
  for (size_t i = 0; i < plan().inputs.size(); ++i) {
    if (ir::IsModelInputName(plan().inputs[i].name)) {
      found.push_back(static_cast<int>(i));
    }
  }
  return found;
}

int Program::FindOutput(const std::string& name) const {
  const auto& outputs = plan().outputs;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].name == name) return static_cast<int>(i);
  }
  FUSOR_CHECK(false, kGraph, "program {}: no output {}", plan().name, name);
}

void Program::SetInput(int input, const void* data, size_t bytes,
                       int64_t slot) {
  context_.device.stream.CopyToDevice(InputAddress(input, data, bytes, slot),
                                      data, bytes);
}

void Program::SetInput(int input, const void* data, size_t bytes, Event& copied,
                       int64_t slot) {
  context_.device.stream.CopyToDevice(InputAddress(input, data, bytes, slot),
                                      data, bytes, copied);
}

void* Program::InputAddress(int input, const void* data, size_t bytes,
                            int64_t slot) const {
  const codegen::PlanInput& target = InputAt(plan(), input);
  CheckNumber(plan(), "slot", slot, ring_.size() + 1);
  const codegen::Buffer& buffer = plan().buffers[target.buffer];
  FUSOR_CHECK(static_cast<int64_t>(bytes) == buffer.type.num_bytes(), kData,
              "input {}: expected {} bytes ({}), got {}", target.name,
              buffer.type.num_bytes(), ToString(buffer.type), bytes);
  FUSOR_CHECK(data != nullptr, kData, "input {}: expected data, got null",
              target.name);
  FUSOR_ASSERT(!buffer.packed, "input {} is packed", target.name);
  return executor_->address(target.buffer, slot);
}

void Program::Run() {
  context_.state.BeforeRun(plan(), shards_);
  StepObserver* observer = context_.observer;
  if (observer == nullptr) return executor_->Run(context_.device.stream);
  for (size_t i = 0; i < executor_->num_steps(); ++i) {
    observer->Before(*this, i);
    executor_->RunStep(i, context_.device.stream);
    context_.device.Synchronize();
    observer->After(*this, i);
  }
}

void Program::RunGroup() {
  FUSOR_ASSERT(context_.observer == nullptr, "program {} is observed",
               plan().name);
  context_.state.BeforeRun(plan(), shards_);
  executor_->RunSlots(context_.device.stream);
}

void Program::RunStep(size_t step) {
  CheckNumber(plan(), "step", static_cast<int64_t>(step),
              executor_->num_steps());
  context_.state.BeforeRun(plan(), shards_);
  executor_->RunStep(step, context_.device.stream);
}

std::vector<double> Program::Profile() {
  context_.state.BeforeRun(plan(), shards_);
  const RankDevice& device = context_.device;
  std::vector<std::unique_ptr<Event>> events;
  for (size_t i = 0; i <= executor_->num_steps(); ++i) {
    events.push_back(device.device.CreateEvent());
  }
  device.Synchronize();
  device.stream.Record(*events[0]);
  for (size_t i = 0; i < executor_->num_steps(); ++i) {
    executor_->RunStep(i, device.stream);
    device.stream.Record(*events[i + 1]);
  }
  device.Synchronize();
  std::vector<double> ms;
  for (size_t i = 0; i < executor_->num_steps(); ++i) {
    ms.push_back(events[i + 1]->ElapsedMs(*events[i]));
  }
  return ms;
}

std::vector<uint8_t> Program::ReadBuffer(int buffer) const {
  CheckNumber(plan(), "buffer", buffer, plan().buffers.size());
  const codegen::Buffer& b = plan().buffers[buffer];
  std::vector<uint8_t> bytes(static_cast<size_t>(b.bytes));
  context_.device.stream.CopyToHost(bytes.data(), executor_->address(buffer),
                                    bytes.size());
  context_.device.Synchronize();
  return codegen::Unpacked(b, std::move(bytes));
}

double Program::ReadScalar(int output) const {
  std::array<char, sizeof(double)> bytes{};
  const ir::DType dtype = EnqueueScalar(output, bytes.data());
  FUSOR_ASSERT(dtype == ir::DType::kF32 || dtype == ir::DType::kF64,
               "output {} is not a floating-point scalar", output);
  context_.device.Synchronize();
  return ir::LoadTensor({dtype, {}, {}}, bytes.data()).data[0];
}

ir::Tensor Program::Read(int output) const {
  const int buffer = OutputAt(plan(), output).buffer;
  // A view has another shape than the value in its buffer, which may have
  // another layout too.
  return ir::LoadTensor(graph().outputs()[output].value->type(),
                        ReadBuffer(buffer).data());
}

ir::DType Program::EnqueueScalar(int output, void* to, int64_t slot) const {
  const int buffer = OutputAt(plan(), output).buffer;
  CheckNumber(plan(), "slot", slot, ring_.size() + 1);
  const ir::TensorType& type = plan().buffers[buffer].type;
  FUSOR_ASSERT(type.num_elements() == 1, "output {} is not a scalar", output);
  context_.device.stream.CopyToHost(to, executor_->address(buffer, slot),
                                    static_cast<size_t>(type.num_bytes()));
  return type.dtype;
}

}  // namespace fusor::runtime
