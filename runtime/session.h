#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "codegen/plan/plan.h"
#include "ir/graph.h"
#include "ir/interpreter/interpreter.h"
#include "runtime/backend/backend.h"
#include "runtime/rank_device.h"

namespace fusor::codegen {
struct CompileOptions;
struct CompileReport;
struct CompiledProgram;
enum class ProgramKind;
}  // namespace fusor::codegen

namespace fusor::runtime {

class Session;
class StateStore;

// Observes each plan step of a running program, for debugging. With an
// observer, the session waits for each plan step to finish.
class StepObserver {
 public:
  virtual ~StepObserver();
  virtual void Before(const Session& session, int program, size_t step) = 0;
  virtual void After(const Session& session, int program, size_t step) = 0;
};

// Runs the programs of one model on one device over shared state. The first
// program added fixes the state layout; later ones are compiled against it.
// Programs share activation memory, because only one runs at a time.
//
// Not thread-safe: use one thread to add, feed and step programs.
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

  // Compiles a model's forward graph and prepares it to run. Returns the
  // program's index. Throws what Compile throws, and kOutOfMemory if the device
  // has less memory than the plan needs. If the options or FUSOR_VERIFY request
  // verification, results and workspaces are poisoned before they are written
  // (runtime/poison.h).
  int AddProgram(std::unique_ptr<ir::Graph> forward, codegen::ProgramKind kind,
                 const codegen::CompileOptions& options);

  // Prepares a program that was compiled elsewhere for the same device. Throws
  // kGraph, naming the tensor, if state shared with the first program has
  // another type or offset.
  int AddProgram(codegen::CompiledProgram compiled);

  // These and all functions below throw kUsage if a program, input, output,
  // buffer or step does not exist.
  const codegen::Plan& plan(int program) const;
  const codegen::CompileReport& report(int program) const;
  const ir::Graph& graph(int program) const;

  // --- Ranks -----------------------------------------------------------------

  int rank() const;        // 0 without a communicator
  int world_size() const;  // 1 without a communicator
  // Collectives: every rank must call these. AllReduce replaces each number by
  // its sum over ranks. AllGather concatenates all ranks' bytes in rank order;
  // sizes must be equal.
  void AllReduce(std::span<double> numbers);
  std::vector<uint8_t> AllGather(std::span<const uint8_t> own) const;

  // --- Running ---------------------------------------------------------------

  // Returns the index of the input or output of that name; throws kGraph.
  int FindInput(int program, const std::string& name) const;
  int FindOutput(int program, const std::string& name) const;
  // False when the program has no such input.
  bool HasInput(int program, const std::string& name) const;

  // REQUIRES: `bytes` is the input's size; row-major layout.
  void SetInput(int program, int input, const void* data, size_t bytes);
  // The same, but the caller keeps `data` unchanged until `copied` has
  // occurred, long before the next step ends. If `data` was allocated by
  // AllocateHost, the copy takes no host time.
  void SetInput(int program, int input, const void* data, size_t bytes,
                Event& copied);
  // Runs the program once. The session allocates nothing and looks up no name.
  // On several ranks throws kUsage if the program needs sharded parameters that
  // are not current; see StateStore.
  void Step(int program);
  // Calls `observer` around every plan step from now on; null: none. It must
  // outlive the session or be replaced.
  void Observe(StepObserver* observer) { observer_ = observer; }
  // Returns a plan buffer's present contents; bitmasks as one byte per bool.
  std::vector<uint8_t> ReadBuffer(int program, int buffer) const;
  // Blocks until the last step has ended. Returns a scalar output as double.
  double ReadScalar(int program, int output);
  ir::Tensor ReadOutput(int program, int output);

  // --- Reading while later steps run -----------------------------------------
  // For a host that runs ahead of the device. These functions enqueue
  // operations after the steps so far; the host may read results once an event
  // recorded later has been awaited. `to` and `numbers` must be memory from
  // AllocateHost.

  std::unique_ptr<Memory> AllocateHost(size_t bytes);
  std::unique_ptr<Event> CreateEvent();
  // Copies a scalar in its own dtype; returns the dtype.
  ir::DType EnqueueScalar(int program, int output, void* to);
  // As AllReduce. All sums not yet awaited must have equal element counts.
  void EnqueueAllReduce(std::span<double> numbers);
  void Record(Event& event);
  // Blocks until the event has occurred; throws errors raised by then.
  void Await(Event& event) const;

  // For debugging: enqueues one plan step. A run is all steps in order.
  void RunStep(int program, size_t step);

  // For profiles: runs the program once and returns milliseconds per plan step,
  // measured between device events.
  std::vector<double> ProfileStep(int program);

 private:
  struct Program;
  Program& ProgramAt(int program) const;
  void* InputAddress(int program, int input, const void* data,
                     size_t bytes) const;
  int AddCompiled(codegen::CompiledProgram compiled, bool poison);
  void PlaceArenas(Program& program, bool poison);
  void BindProgram(Program& program);

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<codegen::TargetCompiler> compiler_;
  StepObserver* observer_ = nullptr;
  const RankDevice ranks_;
  std::unique_ptr<StateStore> state_;
  std::unique_ptr<Memory> temporary_;
  std::unique_ptr<Memory> numbers_;  // for AllReduce
  std::vector<std::unique_ptr<Program>> programs_;
};

}  // namespace fusor::runtime
