#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "codegen/plan.h"
#include "runtime/backend.h"

namespace fusor::runtime {

// Where a plan's arenas lie: one base address an arena of the plan.
using ArenaBases = std::vector<void*>;

// A plan bound to a device: kernels and calls loaded, every argument a fixed
// address. Running it is a plain loop without decisions or allocation. The
// plan must outlive it.
class Executor {
 public:
  // Loads the plan's kernels and calls; throws what the device throws.
  Executor(const codegen::Plan& plan, Device& device);

  // Resolves all arguments and copies the plan's constants into place. To be
  // called once, and again when an arena has moved.
  void Bind(const ArenaBases& bases, Stream& stream);

  // Address of one of the plan's buffers. REQUIRES: bound.
  void* address(int buffer) const { return addresses_[buffer]; }

  // Enqueues every step of the plan. REQUIRES: bound.
  void Run(Stream& stream) const;
  // Enqueues one step, for profiles.
  void RunStep(size_t step, Stream& stream) const;

  size_t num_steps() const { return launches_.size(); }

 private:
  struct Launch {
    const Executable* executable;
    std::vector<void*> args;
  };

  const codegen::Plan& plan_;
  std::vector<std::unique_ptr<Executable>> kernels_;
  std::vector<std::unique_ptr<Executable>> calls_;
  std::vector<void*> addresses_;
  std::vector<Launch> launches_;
};

}  // namespace fusor::runtime
