#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "codegen/plan/plan.h"
#include "runtime/backend/backend.h"
#include "runtime/backend/communicator.h"

namespace fusor::runtime {

// Base address of each arena of a plan.
using ArenaBases = std::vector<void*>;

// A plan bound to a device: kernels and library calls are loaded and every
// argument has a fixed address. Running it is a plain loop without decisions or
// allocation. The plan must outlive it.
//
// Collectives are started on the communicator in plan order; a step that needs
// a result waits for its collective. All other steps run on one stream.
//
// A plan may be bound to several slots, which differ in some arenas (inputs and
// outputs), so that several runs can be enqueued at once.
class Executor {
 public:
  // Loads the plan's kernels and calls. Throws what the device throws, and
  // kGraph if the plan has collectives but `communicator` is null. With
  // `poison`, fills each step's results and workspace with NaNs before it runs
  // (runtime/poison.h), which exposes elements that it leaves unwritten.
  Executor(const codegen::Plan& plan, Device& device,
           Communicator* communicator = nullptr, bool poison = false);

  // Resolves all arguments and copies the plan's constants to the device. Must
  // be called before the first run and whenever an arena has moved. `slots`:
  // bases per slot, at least one; constants are shared.
  void Bind(std::span<const ArenaBases> slots, Stream& stream);

  // Drops the captured graphs; required before an arena is freed.
  void Unbind();

  // Returns the address of one of the plan's buffers. REQUIRES: bound.
  void* address(int buffer, int64_t slot = 0) const {
    return slots_[slot].addresses[buffer];
  }

  // Enqueues every step of the plan, in slot 0. The first run after Bind
  // enqueues them one by one, so that libraries perform their first-use
  // allocations. It then captures them if the stream supports it and, if there
  // are collectives, the communicator does too. Later runs launch the captured
  // graph. REQUIRES: bound, to the same stream.
  void Run(Stream& stream);
  // Enqueues one run per slot, from the last slot to slot 0, as one graph in
  // the same way.
  void RunSlots(Stream& stream);
  // Enqueues one step in slot 0, for profiles. A run is all steps in order.
  void RunStep(size_t step, Stream& stream);

  size_t num_steps() const { return launches_.size(); }

 private:
  // Runs of slots 0 to `slots` - 1 as one graph.
  struct Graph {
    int64_t slots = 1;
    bool captures = false;  // capture after the next run
    std::unique_ptr<Executable> captured;
  };
  void RunGraph(Graph& graph, Stream& stream);
  void RunEach(int64_t slots, Stream& stream);

  struct Launch {
    const Executable* executable = nullptr;  // null: a collective
    std::vector<void*> args;
    Collective collective;
    std::vector<Collective::Tensor> tensors;  // of a bucketed collective
    std::vector<int> poisoned;  // buffers to poison before the launch
    int slot = -1;              // collective: its index in numbers_
    int awaited = -1;           // slot of the collective to wait for first
  };
  // The plan's launches with the addresses of one slot.
  struct Slot {
    std::vector<void*> addresses;  // per buffer
    std::vector<Launch> launches;
  };
  void BindSlot(const ArenaBases& bases, Slot& slot);
  void RunStep(size_t step, const Slot& slot, Stream& stream);
  void AddCollective(const codegen::Step& step);
  void AddTensors(const codegen::LibraryCall& call, Launch& launch);
  static void BindCollective(Launch& launch);
  std::vector<int> OverwrittenBuffers(const codegen::Step& step) const;

  const codegen::Plan& plan_;
  std::vector<std::unique_ptr<Executable>> kernels_;
  std::vector<std::unique_ptr<Executable>> calls_;
  std::vector<Launch> launches_;  // without addresses
  std::vector<Slot> slots_;
  Communicator* const communicator_;
  const bool poison_;
  std::vector<int64_t> numbers_;  // of this run's collectives
  int trailing_ = -1;  // slot of the last collective that no step waits for
  Graph run_;          // of slot 0
  Graph all_slots_;    // of all of them
};

}  // namespace fusor::runtime
