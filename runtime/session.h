#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/backend/backend.h"

namespace fusor::ir {
class Graph;
}  // namespace fusor::ir

namespace fusor::codegen {
struct CompileOptions;
struct CompiledProgram;
enum class ProgramKind;
}  // namespace fusor::codegen

namespace fusor::runtime {

class Program;
class StateStore;
class StepObserver;
struct ProgramContext;

// Runs the programs of one model on one device over shared state. The first
// program added fixes the state layout; later ones are compiled against it.
// Programs share activation memory, because only one runs at a time.
//
// Not thread-safe: use one thread to add, feed and run programs.
class Session {
 public:
  // `backend` and `communicator` must outlive the session. `communicator` is
  // null for a single rank; programs trained by several ranks exchange
  // gradients through it.
  Session(Backend& backend, const BackendOptions& options,
          Communicator* communicator = nullptr);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  Device& device() const { return *device_; }
  // The compiler of this session's programs.
  const codegen::TargetCompiler& compiler() const { return *compiler_; }
  // What the programs share: parameters, optimizer state, running statistics.
  StateStore& state() { return *state_; }
  const StateStore& state() const { return *state_; }

  // --- Programs --------------------------------------------------------------

  // Compiles a model's forward graph and prepares it to run. The program lives
  // as long as the session. Throws what codegen::Compile throws, and
  // kOutOfMemory if the device has less memory than the plan needs. With
  // Verification::kAll, fills results and workspaces with NaN before they are
  // written (runtime/poison.h).
  Program& Compile(std::unique_ptr<ir::Graph> forward,
                   codegen::ProgramKind kind,
                   const codegen::CompileOptions& options);
  // Prepares a program that was compiled elsewhere for the same device. Throws
  // kGraph, naming the tensor, if state shared with the first program has
  // another type or offset.
  Program& Load(codegen::CompiledProgram compiled);

  // In the order of Compile and Load.
  std::span<const std::unique_ptr<Program>> programs() const {
    return programs_;
  }

  // Calls `observer` around every plan step from now on; null: none. It must
  // outlive the session or be replaced.
  void Observe(StepObserver* observer);
  bool is_observed() const;

  // --- Ranks -----------------------------------------------------------------

  int rank() const;        // 0 without a communicator
  int world_size() const;  // 1 without a communicator
  // Collectives: every rank must call these. AllReduce replaces each number by
  // its sum over ranks. AllGather concatenates all ranks' bytes in rank order;
  // sizes must be equal.
  void AllReduce(std::span<double> numbers);
  std::vector<uint8_t> AllGather(std::span<const uint8_t> own) const;

  // --- Reading while later runs proceed --------------------------------------
  // For a host that runs ahead of the device. Operations enqueued here run
  // after the program runs enqueued so far. To read their results, record an
  // event after them and await it. `numbers` must be memory from AllocateHost.

  std::unique_ptr<Memory> AllocateHost(size_t bytes);
  std::unique_ptr<Event> CreateEvent();
  // As AllReduce. All sums not yet awaited must have equal element counts.
  void EnqueueAllReduce(std::span<double> numbers);
  void Record(Event& event);
  // Blocks until the event has occurred; throws errors raised by then.
  void Await(Event& event) const;

 private:
  Program& Add(codegen::CompiledProgram compiled, bool poison);
  bool GrowTemporary(const Program& program);

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<codegen::TargetCompiler> compiler_;
  std::unique_ptr<StateStore> state_;
  std::unique_ptr<ProgramContext> context_;
  std::unique_ptr<Memory> temporary_;
  std::unique_ptr<Memory> numbers_;  // for AllReduce
  std::vector<std::unique_ptr<Program>> programs_;
};

}  // namespace fusor::runtime
