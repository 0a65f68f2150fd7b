#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "codegen/plan/plan.h"
#include "ir/interpreter/tensor_source.h"
#include "runtime/backend/backend.h"
#include "runtime/rank_device.h"

namespace fusor::runtime {

class InitialTensor;

// The part of the state that StateStore::Broadcast copies.
enum class StateSubset : uint8_t { kAll, kStatistics };

// Which values the storage of a sharded parameter holds: the parameter's own,
// or its moving averages.
enum class ParameterView : uint8_t { kCurrent, kAverages };

// How a plan updates parameter shards (ir/shard.h).
struct ShardUpdates {
  bool any = false;
  // The plan gathers the shards at its start (passes::PrefetchParameters), so
  // that it leaves the parameters one update behind their shards.
  bool gathers_first = false;
};
ShardUpdates ShardUpdatesOf(const codegen::Plan& plan);

// Returns the most host memory that StateStore::Write needs for one tensor of
// the plan's state: those that are not row-major are converted there.
int64_t WriteBufferBytes(const codegen::Plan& plan);

// The state of a model on one device: parameters, optimizer state, running
// statistics and moving averages. Values are logical row-major f32 unless
// stated otherwise. Functions that write a parameter also update its cached
// cast weights and this rank's shard of it.
//
// The storage of sharded parameters does not always hold their current values:
// a program may leave it one update behind the shards, and Show may replace it
// with averages. If a function needs other values, it gathers them first,
// provided that there is one rank or that every rank must call the function.
// Otherwise it throws kUsage until every rank has called Show.
class StateStore {
 public:
  // `threads` host threads compute initial values (BackendOptions::threads).
  StateStore(const RankDevice& device, int threads);
  ~StateStore();
  StateStore(const StateStore&) = delete;
  StateStore& operator=(const StateStore&) = delete;

  // Prepares the state for a plan. The first plan fixes the layout. Throws
  // kGraph, naming the tensor, if a later one has other types or offsets.
  void Attach(const codegen::Plan& plan);

  const codegen::StateLayout& layout() const { return layout_; }
  // Returns the address of the state arena; null if no plan has state.
  void* data() const { return memory_ == nullptr ? nullptr : memory_->data(); }

  bool Has(const std::string& name) const { return tensors_.contains(name); }
  // Returns whether each rank updates a shard of this parameter.
  bool IsSharded(const std::string& parameter) const;
  // These and all functions below throw kCheckpoint if there is no tensor of
  // that name.
  ir::InputRole Role(const std::string& name) const;
  // Returns whether this rank stores only a shard of the tensor.
  bool IsShard(const std::string& name) const;
  // Returns whether the tensor is a shard of a parameter, not of other state.
  bool IsParameterShard(const std::string& name) const;
  // Returns the row-major type; for a shard, the type of the whole tensor.
  ir::TensorType LogicalType(const std::string& name) const;
  // Returns the type of all ranks' shards, concatenated.
  ir::TensorType GatheredType(const std::string& shard) const;

  // Sets all state to its initial values. Throws kUsage before the first
  // Attach, and kGraph, naming the tensor, for state without an initialiser.
  void Initialize(uint64_t seed);
  std::vector<float> Read(const std::string& name);
  // Throws kCheckpoint if the count differs.
  void Write(const std::string& name, std::span<const float> values);
  // Sets the tensor of that name, of its LogicalType's shape, from elements
  // that are rounded to its dtype. If the state is sharded, the rank keeps only
  // its shard; on rank 0, Broadcast later sends the elements to the other
  // ranks.
  void Write(const ir::TensorSource& source);
  // The same from row-major elements of its LogicalType.
  void WriteBytes(const std::string& name, std::span<const uint8_t> row_major);
  // Enqueues a copy of a scalar in its own dtype; returns the dtype. `to` must
  // be memory from AllocateHost.
  ir::DType EnqueueScalar(const std::string& name, void* to);

  // If there is one rank, makes the storage of sharded parameters hold the
  // values that `view` selects. With several ranks, throws kUsage, naming
  // `reader`, unless it already holds them.
  void Require(ParameterView view, const std::string& reader);

  // --- Collectives: every rank must call these -------------------------------

  // Copies rank 0's state to every rank. Each rank keeps its own shards of
  // optimizer state, except those that rank 0 has set by WriteBytes since the
  // last update.
  void Broadcast(StateSubset subset);
  // Replaces sharded parameters, and their cached cast weights, with what
  // `view` selects. kAverages applies to parameters whose averages are sharded
  // too. Does nothing if the storage holds these values already.
  void Show(ParameterView view);
  // Returns a tensor of its LogicalType that reads the current state; the store
  // must outlive it. Only a sharded tensor is gathered, in each read from its
  // start.
  ir::TensorSource Source(const std::string& name);
  // Copies a tensor in its physical order; gathers a sharded one instead, of
  // its LogicalType.
  void CopyTo(const std::string& name, std::span<uint8_t> bytes);

  // --- For programs ----------------------------------------------------------

  // Called before each run of a plan. Allocates only if parameters must be
  // gathered. Throws kUsage, naming `plan`, if several ranks must call Show.
  void BeforeRun(const codegen::Plan& plan, const ShardUpdates& updates);

 private:
  struct Tensor {
    codegen::StateLayout::Entry entry;
    ir::InputRole role;
    ir::Attrs attrs;
  };
  // What sharded parameters hold. kPrevious: values before the last update.
  enum class Contents : uint8_t { kCurrent, kPrevious, kAverages };

  static Contents ContentsOf(ParameterView view);
  static std::string_view ContentsName(Contents contents);
  const Tensor& Find(const std::string& name) const;
  void* Address(const Tensor& tensor) const;
  bool HoldsShardedParameter(const Tensor& tensor) const;
  void CheckLayout(const codegen::Plan& plan) const;
  // Writes the tensor's values in its layout, each rounded first.
  void WriteInitialValues(const Tensor& tensor, const InitialTensor& values,
                          ir::DType rounding);
  // Writes row-major elements, rounded to the tensor's dtype.
  void Store(const Tensor& tensor, std::vector<double> elements);
  void StoreBytes(const Tensor& tensor, std::span<const uint8_t> bytes);
  // Returns the whole of a sharded tensor: bytes of its LogicalType.
  std::vector<uint8_t> GatherShard(const std::string& name) const;
  std::vector<uint8_t> LoadBytes(const Tensor& tensor) const;
  // Writes this rank's shard of row-major elements of the whole.
  void StoreShard(const Tensor& shard, std::span<const uint8_t> whole);
  void RoundCopies(const std::string& weight, std::span<const double> elements);
  // Returns the cached cast weights of a weight.
  std::vector<const Tensor*> CopiesOf(const std::string& weight) const;
  void BroadcastStatistics();

  const RankDevice device_;
  const int threads_;
  bool attached_ = false;
  codegen::StateLayout layout_;
  std::unordered_map<std::string, Tensor> tensors_;
  bool has_shards_ = false;         // of parameters
  std::unique_ptr<Memory> memory_;  // null if no plan has state
  Contents contents_ = Contents::kCurrent;
  // Rank 0 of several: whole values that WriteBytes set for sharded tensors,
  // until the next update or Broadcast.
  std::map<std::string, std::vector<uint8_t>> wholes_;
};

}  // namespace fusor::runtime
