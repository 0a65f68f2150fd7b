#pragma once

#include <cstdint>
#include <memory>
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
class Executor {
 public:
  // Loads the plan's kernels and calls. Throws what the device throws, and
  // kGraph if the plan has collectives but `communicator` is null. With
  // `poison`, fills each step's results and workspace with NaNs before it runs
  // (runtime/poison.h), which exposes elements that it leaves unwritten.
  Executor(const codegen::Plan& plan, Device& device,
           Communicator* communicator = nullptr, bool poison = false);

  // Resolves all arguments and copies the plan's constants to the device. Must
  // be called before the first run and whenever an arena has moved.
  void Bind(const ArenaBases& bases, Stream& stream);

  // Drops the captured graph; required before an arena is freed.
  void Unbind() { captured_.reset(); }

  // Returns the address of one of the plan's buffers. REQUIRES: bound.
  void* address(int buffer) const { return addresses_[buffer]; }

  // Enqueues every step of the plan. The first run after Bind enqueues them one
  // by one, so that libraries perform their first-use allocations. It then
  // captures them if the stream supports it and, if there are collectives, the
  // communicator does too. Later runs launch the captured graph. REQUIRES:
  // bound, to the same stream.
  void Run(Stream& stream);
  // Enqueues one step, for profiles. A run is all steps in order.
  void RunStep(size_t step, Stream& stream);

  size_t num_steps() const { return launches_.size(); }

 private:
  void RunSteps(Stream& stream);

  struct Launch {
    const Executable* executable = nullptr;  // null: a collective
    std::vector<void*> args;
    Collective collective;
    std::vector<Collective::Tensor> tensors;  // of a bucketed collective
    std::vector<int> poisoned;  // buffers to poison before the launch
    int slot = -1;              // collective: its index in numbers_
    int awaited = -1;           // slot of the collective to wait for first
  };
  void AddCollective(const codegen::Step& step);
  void AddTensors(const codegen::LibraryCall& call, Launch& launch);
  static void BindCollective(Launch& launch);
  std::vector<int> OverwrittenBuffers(const codegen::Step& step) const;

  const codegen::Plan& plan_;
  std::vector<std::unique_ptr<Executable>> kernels_;
  std::vector<std::unique_ptr<Executable>> calls_;
  std::vector<void*> addresses_;
  std::vector<Launch> launches_;
  Communicator* const communicator_;
  const bool poison_;
  std::vector<int64_t> numbers_;  // of this run's collectives
  int trailing_ = -1;      // slot of the last collective that no step waits for
  bool captures_ = false;  // capture after the next run
  std::unique_ptr<Executable> captured_;  // all steps
};

}  // namespace fusor::runtime
