#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "codegen/plan/plan.h"
#include "ir/graph.h"
#include "ir/interpreter/interpreter.h"
#include "runtime/backend/backend.h"

namespace fusor::codegen {
struct CompileOptions;
struct CompileReport;
struct CompiledProgram;
enum class ProgramKind;
}  // namespace fusor::codegen

namespace fusor::runtime {

class InitialTensor;
class Session;

// Observes each plan step of a running program, for debugging. With an
// observer, the session waits for each plan step to finish.
class StepObserver {
 public:
  virtual ~StepObserver();
  virtual void Before(const Session& session, int program, size_t step) = 0;
  virtual void After(const Session& session, int program, size_t step) = 0;
};

// Runs the programs of one model on one device over shared state: parameters,
// optimizer state and running statistics. The first program added fixes the
// state layout; later ones are compiled against it. Programs share activation
// memory, because only one runs at a time.
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

  // --- State; logical row-major f32 ------------------------------------------
  const codegen::StateLayout& state() const { return state_layout_; }
  // Functions that write state also update cached cast weights. Throws kGraph,
  // naming the tensor, for state without an initialiser.
  void InitializeState(uint64_t seed);
  std::vector<float> ReadState(const std::string& name) const;
  // Throws kCheckpoint if the name is unknown or the count differs.
  void WriteState(const std::string& name, std::span<const float> values);
  // Returns the role of the tensor of that name.
  ir::InputRole StateRole(const std::string& name) const;
  // Whether this rank stores only a shard; whether it is a shard of a
  // parameter.
  bool IsShard(const std::string& name) const;
  bool IsParameterShard(const std::string& name) const;
  // Row-major type; for a shard, the type of the whole tensor.
  ir::TensorType LogicalType(const std::string& name) const;
  // Copies the whole state in its physical layout: state().bytes, each entry at
  // its offset in the order of its type's layout (ir::ToRowMajor).
  void CopyState(std::span<uint8_t> bytes) const;
  // Sets one tensor bit-exactly from row-major elements of its LogicalType.
  // This function and BroadcastState copy this rank's shard from it.
  void WriteStateBytes(const std::string& name,
                       std::span<const uint8_t> row_major);

  // --- Collectives: every rank must call these -------------------------------

  int rank() const;        // 0 without a communicator
  int world_size() const;  // 1 without a communicator
  // Copies rank 0's state, or only its statistics, to every rank. Tensors set
  // whole are sharded by BroadcastState.
  void BroadcastState();
  void BroadcastStatistics();
  // Updates sharded parameters, and their cached casts, from all ranks' shards.
  // Does nothing if they are up to date. A step that all-gathers at its start
  // (passes::PrefetchParameters) leaves them at their values before its update.
  // Until this call, neither the host nor other programs may read them.
  void GatherParameters();
  // Replaces sharded parameters with their moving averages, for evaluation or
  // saving, until GatherParameters. Applies to parameters whose averages are
  // sharded too.
  void ShowAverages();
  // Returns the whole of a sharded tensor: bytes of LogicalType.
  std::vector<uint8_t> GatherShard(const std::string& name) const;
  // Concatenates all ranks' bytes in rank order; sizes must be equal.
  std::vector<uint8_t> GatherBytes(std::span<const uint8_t> own) const;
  // All-reduces each number to its sum over ranks.
  void SumOverRanks(std::span<double> numbers);

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
  ir::DType EnqueueScalarState(const std::string& name, void* to);
  // As SumOverRanks. All sums not yet awaited must have equal element counts.
  void EnqueueSumOverRanks(std::span<double> numbers);
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
  void Synchronize() const;
  void* InputAddress(int program, int input, const void* data,
                     size_t bytes) const;
  const codegen::StateLayout::Entry& FindState(const std::string& name) const;
  // Writes the tensor's values in the entry's layout, each rounded first.
  void WriteInitialValues(const codegen::StateLayout::Entry& entry,
                          const InitialTensor& values, ir::DType rounding);
  // Writes row-major elements, rounded to the entry's dtype.
  void StoreState(const codegen::StateLayout::Entry& entry,
                  std::vector<double> elements);
  const ir::Attrs& StateAttrs(const std::string& name) const;
  void StoreShard(const std::string& name, std::span<const uint8_t> whole);
  void ScatterShards();
  void WriteCopies(const std::string& weight, std::span<const double> elements);
  void RoundCopies(const std::string& weight, std::span<const double> elements);
  void ShowParts(std::string (*part)(std::string_view));
  bool IsInParts(const std::string& name) const;
  void Begin(const Program& program);
  void Broadcast(int64_t offset, int64_t bytes);
  void CheckState(const codegen::Plan& plan) const;
  int AddCompiled(codegen::CompiledProgram compiled, bool poison);
  void PlaceArenas(Program& program, bool poison);
  std::unique_ptr<Memory> AllocateShared(size_t bytes);
  void BindProgram(Program& program);

  Backend& backend_;
  BackendOptions backend_options_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<codegen::TargetCompiler> compiler_;
  StepObserver* observer_ = nullptr;
  // Contents of the storage of sharded parameters: the gathered shards, their
  // values before the last step, or their moving averages.
  enum class Shown : uint8_t { kParts, kOld, kAverages };
  Shown shown_ = Shown::kParts;
  codegen::StateLayout state_layout_;
  std::unique_ptr<Memory> state_;
  std::unique_ptr<Memory> temporary_;
  Communicator* const communicator_;
  std::unique_ptr<Memory> numbers_;  // for SumOverRanks
  // Whole values that were set for sharded tensors.
  std::map<std::string, std::vector<uint8_t>> wholes_;
  std::vector<std::unique_ptr<Program>> programs_;
};

}  // namespace fusor::runtime
