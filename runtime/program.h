#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "codegen/plan/plan.h"
#include "ir/graph.h"
#include "ir/interpreter/interpreter.h"
#include "runtime/backend/backend.h"
#include "runtime/rank_device.h"
#include "runtime/state_store.h"

namespace fusor::codegen {
struct CompiledProgram;
struct CompileReport;
}  // namespace fusor::codegen

namespace fusor::runtime {

class Executor;
class StepObserver;

// Shared by the programs of a session.
struct ProgramContext {
  RankDevice device;
  StateStore& state;
  StepObserver* observer = nullptr;
};

// A compiled graph that is ready to run on a session's device. It has separate
// inputs and outputs, and shares state and activation memory with the session's
// other programs.
//
// Functions throw kUsage if an input, output, buffer or step does not exist.
class Program {
 public:
  // Created by Session. With `poison`, fills results and workspaces with NaN
  // before they are written (runtime/poison.h).
  Program(ProgramContext& context, codegen::CompiledProgram compiled,
          bool poison);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  const codegen::Plan& plan() const;
  const codegen::CompileReport& report() const;
  const ir::Graph& graph() const;

  // Returns the index of the input or output of that name; throws kGraph.
  int FindInput(const std::string& name) const;
  int FindOutput(const std::string& name) const;
  // Returns the indices of the model's inputs, in the model's order; see
  // ir::ModelInputName.
  std::vector<int> FindModelInputs() const;
  // Return whether the program has an input or output of that name.
  bool HasInput(const std::string& name) const;
  bool HasOutput(const std::string& name) const;

  // Prepares RunGroup for `steps` runs at once. Each run has a slot of inputs
  // and outputs: the first run has slot `steps` - 1, the last run has slot 0.
  // Allocates the slots; the inputs of new slots are zero. Throws kOutOfMemory.
  // REQUIRES: steps >= 1.
  void SetGroup(int64_t steps);
  int64_t group() const { return static_cast<int64_t>(ring_.size()) + 1; }

  // REQUIRES: `bytes` is the input's size; row-major layout.
  void SetInput(int input, const void* data, size_t bytes, int64_t slot = 0);
  // The same without waiting for the copy. The caller must not change `data`
  // until `copied` has occurred, which is long before the next run ends. If
  // `data` was allocated by Session::AllocateHost, the copy takes no host time.
  void SetInput(int input, const void* data, size_t bytes, Event& copied,
                int64_t slot = 0);

  // Runs the program once, in slot 0. Allocates nothing and looks up no name.
  // On several ranks throws kUsage if the program needs sharded parameters that
  // are not current; see StateStore.
  void Run();
  // Runs the program once per slot, from the last slot to slot 0, as one graph
  // if the device can capture it. REQUIRES: no observer.
  void RunGroup();
  // For debugging: enqueues one plan step. A run is all steps in order.
  void RunStep(size_t step);
  // For profiles: runs once and returns milliseconds per plan step, measured
  // between device events.
  std::vector<double> Profile();

  // Block until the last run has ended. ReadScalar returns a scalar output as
  // double. ReadBuffer returns a plan buffer's present contents; bitmasks as
  // one byte per bool.
  ir::Tensor Read(int output) const;
  double ReadScalar(int output) const;
  std::vector<uint8_t> ReadBuffer(int buffer) const;
  // Enqueues a copy of a scalar output in its own dtype after the runs so far;
  // returns the dtype. `to` must be memory from Session::AllocateHost.
  ir::DType EnqueueScalar(int output, void* to, int64_t slot = 0) const;

  // --- For Session -----------------------------------------------------------

  // Resolves all addresses. Must be called before the first run and whenever
  // `temporary`, the memory of the plan's temporary arena, has moved.
  void Bind(Memory* temporary);
  // Must be called before the temporary arena is freed.
  void Unbind();

 private:
  using Arenas = std::vector<std::unique_ptr<Memory>>;  // null where shared

  void* InputAddress(int input, const void* data, size_t bytes,
                     int64_t slot) const;
  bool IsPerSlot(size_t arena) const;
  std::unique_ptr<Memory> AllocateArena(size_t arena) const;

  ProgramContext& context_;
  const std::unique_ptr<codegen::CompiledProgram> compiled_;
  std::unique_ptr<Executor> executor_;
  Arenas arenas_;             // of slot 0
  std::vector<Arenas> ring_;  // of slots 1 and up: inputs and outputs
  Memory* temporary_ = nullptr;
  const ShardUpdates shards_;
};

}  // namespace fusor::runtime
