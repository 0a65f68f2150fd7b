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
#include "runtime/autotuner.h"
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

// Watches programs run step by step: for debugging. While a session has an
// observer, it waits for each step of the plan to end.
class StepObserver {
 public:
  virtual ~StepObserver();
  virtual void Before(const Session& session, int program, size_t step) = 0;
  virtual void After(const Session& session, int program, size_t step) = 0;
};

// The programs of one model on one device, over one state store: parameters,
// optimizer state and running statistics. The first program that is added
// fixes where state lies; later ones are compiled against that. Programs share
// the memory of their activations, for only one runs at a time.
//
// Not thread-safe: one thread adds, feeds and steps.
class Session {
 public:
  // `backend` must outlive the session, and so must `communicator`, null for
  // one rank alone: programs that train with several ranks exchange their
  // gradients through it.
  Session(Backend& backend, const BackendOptions& options,
          Communicator* communicator = nullptr);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const Device& device() const { return *device_; }
  // What programs are compiled with.
  const codegen::TargetCompiler& compiler() const { return *compiler_; }

  // Compiles a model's forward graph and makes it ready to run. Returns the
  // program's number. Throws what Compile throws, and kOutOfMemory when the
  // device has less memory than the plan needs. Where the options or
  // FUSOR_VERIFY ask for verification, results and workspaces are poisoned
  // before they are written (runtime/poison.h).
  int AddProgram(std::unique_ptr<ir::Graph> forward, codegen::ProgramKind kind,
                 const codegen::CompileOptions& options);

  // Makes ready a program that was compiled elsewhere for the same device.
  // Throws kGraph, naming the tensor, unless the state that it shares with the
  // first program lies where that has it.
  int AddProgram(codegen::CompiledProgram compiled);

  // Measures the library's candidates for the convolutions of a model's step on
  // this session's device, before there is a program: see runtime/autotuner.h.
  TuneResult Tune(const ir::Graph& forward, codegen::ProgramKind kind,
                  const codegen::CompileOptions& compile,
                  const TuneOptions& options);

  // These and all functions below throw kUsage for a program, input, output,
  // buffer or step that does not exist.
  const codegen::Plan& plan(int program) const;
  const codegen::CompileReport& report(int program) const;
  const ir::Graph& graph(int program) const;

  // --- State; logical row-major f32 ------------------------------------------
  const codegen::StateLayout& state() const { return state_layout_; }
  // Copies of weights follow whatever writes these.
  // Throws kGraph, naming the tensor, for state without an initialiser.
  void InitializeState(uint64_t seed);
  std::vector<float> ReadState(const std::string& name) const;
  // Throws kCheckpoint when the name is unknown or the count differs.
  void WriteState(const std::string& name, std::span<const float> values);
  // What the tensor of that name is for.
  ir::InputRole StateRole(const std::string& name) const;
  // Whether this rank has but a part of it; whether that is a part of a
  // parameter, which says nothing of its own.
  bool IsShard(const std::string& name) const;
  bool IsParameterShard(const std::string& name) const;
  // Row-major; of a part, that of the whole.
  ir::TensorType LogicalType(const std::string& name) const;
  // Copies all of state as it lies: state().bytes, each entry at its offset, in
  // the order of its type's layout (ir::ToRowMajor).
  void CopyState(std::span<uint8_t> bytes) const;
  // Sets one tensor, bit for bit; row-major elements of its LogicalType. Parts
  // are cut of it here, and by BroadcastState.
  void WriteStateBytes(const std::string& name,
                       std::span<const uint8_t> row_major);

  // --- Ranks: to be called by all of them ------------------------------------

  int rank() const;        // 0 without a communicator
  int world_size() const;  // 1 without a communicator
  // Rank 0's state, or its statistics alone, become every rank's; each gets its
  // part of what was set whole.
  void BroadcastState();
  void BroadcastStatistics();
  // Parameters of which each rank updates a part become, with their copies,
  // all ranks' parts. Nothing where they are that: a step that gathers at its
  // beginning (passes::PrefetchParameters) leaves them as old as that, and
  // until this has been called they must not be read, by other programs
  // neither.
  void GatherParameters();
  // Where each rank has a part of their moving averages, those parameters
  // become all ranks' parts of the averages, until GatherParameters: to
  // evaluate them, or to save them.
  void ShowAverages();
  // All ranks' parts of a tensor of which each has one: bytes of LogicalType.
  std::vector<uint8_t> GatherShard(const std::string& name) const;
  // All ranks' bytes, as many from each, one after the other.
  std::vector<uint8_t> GatherBytes(std::span<const uint8_t> own) const;
  // Each number becomes the sum over all ranks of what they have there.
  void SumOverRanks(std::span<double> numbers);

  // --- Running ---------------------------------------------------------------

  // Position of the input or output of that name; throws kGraph.
  int FindInput(int program, const std::string& name) const;
  int FindOutput(int program, const std::string& name) const;
  // False when the program has no such input.
  bool HasInput(int program, const std::string& name) const;

  // REQUIRES: `bytes` is the input's size; row-major layout.
  void SetInput(int program, int input, const void* data, size_t bytes);
  // The same, but `data` stays as it is until `copied` has happened, which is
  // long before the next step ends. In memory of AllocateHost it takes none of
  // the host's time.
  void SetInput(int program, int input, const void* data, size_t bytes,
                Event& copied);
  // Runs the program once. No allocation of ours, no look-ups.
  void Step(int program);
  // From now on `observer`, null for none, sees every step; it must outlive the
  // session or be replaced.
  void Observe(StepObserver* observer) { observer_ = observer; }
  // What one of the plan's buffers holds now; packed bools a byte each.
  std::vector<uint8_t> ReadBuffer(int program, int buffer) const;
  // Blocks until the last step has ended. A scalar output as double.
  double ReadScalar(int program, int output);
  ir::Tensor ReadOutput(int program, int output);

  // --- Reading while later steps run -----------------------------------------
  // For a host that runs ahead of the device. What is enqueued here comes after
  // the steps so far; the host reads it once an event that is recorded later
  // has been awaited. `to` and `numbers` lie in memory of AllocateHost.

  std::unique_ptr<Memory> AllocateHost(size_t bytes);
  std::unique_ptr<Event> CreateEvent();
  // Copies a scalar in its dtype, which is returned.
  ir::DType EnqueueScalar(int program, int output, void* to);
  ir::DType EnqueueScalarState(const std::string& name, void* to);
  // As SumOverRanks. All sums that have not been awaited have the same number
  // of elements.
  void EnqueueSumOverRanks(std::span<double> numbers);
  void Record(Event& event);
  // Blocks until it has happened; throws what went wrong by then.
  void Await(Event& event) const;

  // For debugging: enqueues one step of the plan. A run is all steps in order.
  void RunStep(int program, size_t step);

  // For profiles: milliseconds of each step of the plan in one run of the
  // program, between events of the device.
  std::vector<double> ProfileStep(int program);

 private:
  struct Program;
  Program& ProgramAt(int program) const;
  void Synchronize() const;
  void* InputAddress(int program, int input, const void* data,
                     size_t bytes) const;
  const codegen::StateLayout::Entry& FindState(const std::string& name) const;
  // Row-major elements, rounded to the entry's dtype.
  // Writes the tensor's values in the entry's layout, each rounded first.
  void WriteInitialValues(const codegen::StateLayout::Entry& entry,
                          const InitialTensor& values, ir::DType rounding);
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
  // What there is where a parameter lies of which each rank updates a part: all
  // of them, what they were before the last step, or their moving averages.
  enum class Shown : uint8_t { kParts, kOld, kAverages };
  Shown shown_ = Shown::kParts;
  codegen::StateLayout state_layout_;
  std::unique_ptr<Memory> state_;
  std::unique_ptr<Memory> temporary_;
  Communicator* const communicator_;
  std::unique_ptr<Memory> numbers_;  // for SumOverRanks
  // What was set of tensors of which each rank has a part.
  std::map<std::string, std::vector<uint8_t>> wholes_;
  std::vector<std::unique_ptr<Program>> programs_;
};

}  // namespace fusor::runtime
