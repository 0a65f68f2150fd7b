#include "runtime/executor.h"

#include <functional>
#include <unordered_map>

#include "ir/support/error.h"
#include "runtime/poison.h"

namespace fusor::runtime {

using codegen::Step;
using codegen::StepKind;

Executor::Executor(const codegen::Plan& plan, Device& device,
                   Communicator* communicator, bool poison)
    : plan_(plan), communicator_(communicator), poison_(poison) {
  for (const codegen::CompiledKernel& kernel : plan.kernels) {
    kernels_.push_back(device.LoadKernel(kernel));
  }
  for (const codegen::LibraryCall& call : plan.calls) {
    calls_.push_back(call.HasTrait(ir::OpTrait::kCollective)
                         ? nullptr
                         : device.LoadCall(call));
  }
  std::unordered_map<int, int> slots;  // event -> slot of its collective
  for (const Step& step : plan.steps) {
    if (step.kind == StepKind::kCollective) {
      AddCollective(step);
      trailing_ = launches_.back().slot;
      if (step.records >= 0) slots[step.records] = trailing_;
      continue;
    }
    FUSOR_CHECK(step.stream == 0, kGraph,
                "plan {}: step {} is on stream {}, expected 0", plan.name,
                step.name, step.stream);
    const auto& executables =
        step.kind == StepKind::kLaunch ? kernels_ : calls_;
    launches_.push_back({executables[step.index].get(), {}, {}});
    if (poison_) launches_.back().poisoned = OverwrittenBuffers(step);
    for (int event : step.waits) launches_.back().awaited = slots.at(event);
    if (launches_.back().awaited >= trailing_) trailing_ = -1;
  }
}

// Returns the results and workspaces of a kernel or call, except results that
// alias an operand.
std::vector<int> Executor::OverwrittenBuffers(const Step& step) const {
  const auto is_read = [&](size_t arg) {
    return step.kind == StepKind::kLaunch
               ? !plan_.kernels[step.index].kernel.buffers[arg].written
               : arg < plan_.calls[step.index].operands.size();
  };
  const auto overlap = [&](int a, int b) {
    const codegen::Buffer& x = plan_.buffers[a];
    const codegen::Buffer& y = plan_.buffers[b];
    return x.arena == y.arena && x.offset < y.offset + y.bytes &&
           y.offset < x.offset + x.bytes;
  };
  std::vector<int> overwritten;
  for (size_t result = 0; result < step.args.size(); ++result) {
    if (is_read(result)) continue;
    bool in_place = false;
    for (size_t operand = 0; operand < step.args.size(); ++operand) {
      in_place |=
          is_read(operand) && overlap(step.args[operand], step.args[result]);
    }
    if (!in_place) overwritten.push_back(step.args[result]);
  }
  return overwritten;
}

// Adds a collective, which waits for all steps enqueued on the stream.
void Executor::AddCollective(const Step& step) {
  FUSOR_CHECK(communicator_ != nullptr, kGraph,
              "plan {}: step {} needs several ranks", plan_.name, step.name);
  const codegen::LibraryCall& call = plan_.calls[step.index];
  Launch launch;
  launch.slot = static_cast<int>(numbers_.size());
  launch.collective.dtype = call.operands[0].dtype;
  if (call.op == ir::OpKind::kAllReduce) {
    const codegen::Buffer& first = plan_.buffers[step.args[0]];
    const codegen::Buffer& last =
        plan_.buffers[step.args[call.operands.size() - 1]];
    const int64_t bytes =
        last.offset + codegen::PadToAlignment(last.bytes) - first.offset;
    launch.collective.elements = bytes / ir::DTypeSize(first.type.dtype);
  } else {
    AddTensors(call, launch);
  }
  launches_.push_back(std::move(launch));
  numbers_.push_back(-1);
}

void Executor::AddTensors(const codegen::LibraryCall& call, Launch& launch) {
  const bool gathers = call.op == ir::OpKind::kAllGather;
  const int64_t ranks = call.attrs.Int(gathers ? "ranks" : "parts");
  FUSOR_CHECK(ranks == communicator_->world_size(), kGraph,
              "plan {}: {} of {} ranks, expected {}", plan_.name,
              call.op_name(), ranks, communicator_->world_size());
  launch.collective.kind =
      gathers ? CollectiveKind::kAllGather : CollectiveKind::kReduceScatter;
  for (size_t i = 0; i < call.operands.size(); ++i) {
    const int64_t elements = call.operands[i].num_elements();
    const int64_t part = gathers ? elements : call.results[i].num_elements();
    launch.tensors.push_back({.elements = elements, .part = part});
    launch.collective.elements += ranks * part;
  }
}

void Executor::Bind(std::span<const ArenaBases> slots, Stream& stream) {
  slots_.assign(slots.size(), {});
  for (size_t s = 0; s < slots.size(); ++s) BindSlot(slots[s], slots_[s]);
  for (const codegen::Plan::Constant& constant : plan_.constants) {
    stream.CopyToDevice(address(constant.buffer), constant.bytes.data(),
                        constant.bytes.size());
  }
  stream.Synchronize();
  Unbind();
  // Host copies, as of poison, are not captured.
  run_.captures = all_slots_.captures = !poison_;
  all_slots_.slots = static_cast<int64_t>(slots.size());
}

void Executor::Unbind() {
  run_.captured.reset();
  all_slots_.captured.reset();
}

void Executor::BindSlot(const ArenaBases& bases, Slot& slot) {
  FUSOR_ASSERT(bases.size() == plan_.arenas.size(), "{} bases for {} arenas",
               bases.size(), plan_.arenas.size());
  for (const codegen::Buffer& buffer : plan_.buffers) {
    slot.addresses.push_back(static_cast<char*>(bases[buffer.arena]) +
                             buffer.offset);
  }
  slot.launches = launches_;
  for (size_t i = 0; i < slot.launches.size(); ++i) {
    Launch& launch = slot.launches[i];
    for (int arg : plan_.steps[i].args) {
      launch.args.push_back(slot.addresses[arg]);
    }
    if (launch.executable != nullptr) continue;
    BindCollective(launch);
    communicator_->Prepare(launch.collective);
  }
}

void Executor::BindCollective(Launch& launch) {
  Collective& collective = launch.collective;
  const size_t tensors = launch.tensors.size();
  if (tensors == 0) collective.data = launch.args[0];
  for (size_t i = 0; i < tensors; ++i) {
    launch.tensors[i].source = launch.args[i];
    launch.tensors[i].target = launch.args[tensors + i];
  }
  collective.tensors = launch.tensors.data();
  collective.num_tensors = static_cast<int>(tensors);
}

void Executor::RunStep(size_t step, Stream& stream) {
  RunStep(step, slots_[0], stream);
}

void Executor::RunStep(size_t step, const Slot& slot, Stream& stream) {
  const Launch& launch = slot.launches[step];
  if (launch.executable == nullptr) {
    numbers_[launch.slot] = communicator_->Start(launch.collective, stream);
  } else {
    if (launch.awaited >= 0) {
      communicator_->Wait(numbers_[launch.awaited], stream);
    }
    for (const int buffer : launch.poisoned) {
      Poison(stream, slot.addresses[buffer],
             static_cast<size_t>(plan_.buffers[buffer].bytes));
    }
    stream.Launch(*launch.executable, launch.args.data(), launch.args.size());
  }
  if (step + 1 == launches_.size() && trailing_ >= 0) {
    communicator_->Wait(numbers_[trailing_], stream);
  }
}

void Executor::Run(Stream& stream) { RunGraph(run_, stream); }

void Executor::RunSlots(Stream& stream) { RunGraph(all_slots_, stream); }

void Executor::RunGraph(Graph& graph, Stream& stream) {
  if (graph.captured != nullptr) {
    try {
      return stream.Launch(*graph.captured, nullptr, 0);
    } catch (const Error& e) {
      // The stream has reported it. Other ranks launch their collectives in a
      // graph, so this rank cannot fall back.
      const bool rejected =
          e.code() == ErrorCode::kDevice || e.code() == ErrorCode::kOutOfMemory;
      if (!rejected || !numbers_.empty()) throw;
      graph.captured.reset();
    }
  }
  RunEach(graph.slots, stream);
  if (!graph.captures) return;
  graph.captures = false;
  const auto work = [&] { RunEach(graph.slots, stream); };
  // By reference, because a copy is too large to be stored without allocation.
  graph.captured = numbers_.empty()
                       ? stream.Capture(std::ref(work))
                       : communicator_->Capture(stream, std::ref(work));
}

void Executor::RunEach(int64_t slots, Stream& stream) {
  for (int64_t slot = slots - 1; slot >= 0; --slot) {
    for (size_t i = 0; i < launches_.size(); ++i) {
      RunStep(i, slots_[slot], stream);
    }
  }
}

}  // namespace fusor::runtime
