#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "codegen/plan/plan.h"
#include "runtime/backend/backend.h"
#include "runtime/backend/communicator.h"

namespace fusor::runtime {

// Where a plan's arenas lie: one base address an arena of the plan.
using ArenaBases = std::vector<void*>;

// A plan bound to a device: kernels and calls loaded, every argument a fixed
// address. Running it is a plain loop without decisions or allocation. The
// plan must outlive it.
//
// Collectives go to the communicator when their turn comes, and the step that
// needs one's results waits for it; all else goes to one stream.
class Executor {
 public:
  // Loads the plan's kernels and calls; throws what the device throws, and
  // kGraph when the plan has collectives and there is no communicator. With
  // `poison`, each step's results and workspace are poisoned before it runs
  // (runtime/poison.h), so that what it leaves unwritten shows.
  Executor(const codegen::Plan& plan, Device& device,
           Communicator* communicator = nullptr, bool poison = false);

  // Resolves all arguments and copies the plan's constants into place. To be
  // called once, and again when an arena has moved.
  void Bind(const ArenaBases& bases, Stream& stream);

  // Forgets what Run has captured: before an arena goes away.
  void Unbind() { captured_.reset(); }

  // Address of one of the plan's buffers. REQUIRES: bound.
  void* address(int buffer) const { return addresses_[buffer]; }

  // Enqueues every step of the plan. The first run after Bind enqueues them one
  // by one, so that libraries make ready what they allocate at first use, and
  // captures them where the stream does that and, if there are collectives, the
  // communicator, too; later runs launch that. REQUIRES: bound, to the same
  // stream.
  void Run(Stream& stream);
  // Enqueues one step, for profiles. A run is all of them, in order.
  void RunStep(size_t step, Stream& stream);

  size_t num_steps() const { return launches_.size(); }

 private:
  void RunSteps(Stream& stream);

  struct Launch {
    const Executable* executable = nullptr;  // null: a collective
    std::vector<void*> args;
    Collective collective;
    std::vector<Collective::Tensor> tensors;  // of a collective apart
    std::vector<int> poisoned;                // buffers
    int slot = -1;     // of a collective: its place in numbers_
    int awaited = -1;  // slot of the collective that has to end before
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
  bool captures_ = false;  // at the end of the next run
  std::unique_ptr<Executable> captured_;  // all steps
};

}  // namespace fusor::runtime
