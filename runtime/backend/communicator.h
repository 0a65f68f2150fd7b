#pragma once

// Collectives on the ranks' memory. There is one communicator per process. All
// ranks start the same collectives in the same order. Collectives run one after
// the other, overlapped with the work of other streams.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ir/dtype.h"

namespace fusor::runtime {

class Device;
class Executable;
class Memory;
class Stream;

enum class CollectiveKind : uint8_t {
  kAllReduce,      // every rank gets the sum of all ranks' elements
  kReduceScatter,  // rank r gets the sum of shard r; other shards are undefined
  kAllGather,      // every rank gets shard r of each rank r
  kBroadcast,      // every rank gets the root's elements
  kBarrier,        // no data: ends on no rank before all have started it
};
std::string_view CollectiveName(CollectiveKind kind);  // "all_reduce"

// Shard r of n elements on W ranks is [r * c, (r + 1) * c), clipped to n, with
// c = ceil(n / W).
struct Collective {
  // One tensor of a bucketed collective.
  struct Tensor {
    // All-gather: this rank's shard; reduce-scatter: whole input.
    const void* source = nullptr;
    // All-gather: all shards; reduce-scatter: this rank's shard.
    void* target = nullptr;
    int64_t elements = 0;  // elements of source
    int64_t part = 0;      // elements per shard

    // Returns how many elements of the source are in shard `rank`.
    int64_t PartElements(int rank) const {
      return std::clamp<int64_t>(elements - rank * part, 0, part);
    }
  };

  CollectiveKind kind = CollectiveKind::kAllReduce;
  void* data = nullptr;  // device memory, changed in place
  int64_t elements = 0;
  // Sums: f16, bf16, f32 or f64. Other kinds: any dtype.
  ir::DType dtype = ir::DType::kF32;
  int root = 0;  // root rank of a broadcast
  // Tensors of a bucketed all-gather or reduce-scatter; if any, they replace
  // `data`, and `elements` counts all ranks' shards of all tensors. A
  // reduce-scatter pads sources with 0. The array must outlive the collective.
  const Tensor* tensors = nullptr;
  int num_tensors = 0;
};

struct CommunicatorOptions {
  // Timeout of each collective. A peer that has not joined by then is lost.
  std::chrono::milliseconds timeout{300'000};
  // If true, sums add elements in rank order, starting from zero; 16-bit
  // elements accumulate in f32 and are rounded once. Otherwise the transport
  // chooses the order, which is the same on all ranks and in all runs with the
  // same number of ranks.
  bool deterministic = false;
  // Network interface; empty: the one that reaches rank 0.
  std::string interface;
  // Called on a separate thread if the transport does not return even after an
  // abort. Any wait for the device may then block forever, including in
  // destructors. The process should exit.
  std::function<void(const std::string& why)> hangs{};
};

// Times of one collective, for profiles: seconds on the steady clock.
struct CollectiveTime {
  double started = 0;  // when Start was called
  double begun = 0;    // when all earlier collectives had ended
  double ended = 0;
  int64_t bytes = 0;
};

// Use it from one thread at a time. After an error no collective runs, and the
// next call throws that error as kPeerLost.
class Communicator {
 public:
  virtual ~Communicator();
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  virtual std::string description() const = 0;  // "gloo over 10.0.0.1"

  // Allocates device memory for collectives, as Device::Allocate does. The
  // memory is registered if the transport benefits. All ranks must make the
  // same allocations in the same order. The communicator must outlive it.
  virtual std::unique_ptr<Memory> Allocate(Device& device, size_t bytes);

  // Allocates the memory that a collective of this kind, size and dtype needs
  // besides its data. Otherwise Start allocates it.
  virtual void Prepare(const Collective& collective);

  // Starts the collective once the work enqueued on `stream` has ended. Returns
  // immediately, without allocation. Returns the collective's number, from 0.
  virtual int64_t Start(const Collective& collective, Stream& stream) = 0;
  // Makes work enqueued on `stream` from now on wait for the collective.
  virtual void Wait(int64_t number, Stream& stream) = 0;
  // As Stream::Capture, for work that starts collectives and waits for all of
  // them. Launch the result on the same stream, with the same order of
  // collectives on all ranks. Every rank must call this. Returns null on all
  // ranks if the transport or any rank's stream does not support capture. The
  // communicator must outlive the result.
  virtual std::unique_ptr<Executable> Capture(
      Stream& stream, const std::function<void()>& work);

  // Throws the first error so far. A failed collective does not stop its
  // stream. Results are valid only if this does not throw once the stream is
  // idle.
  virtual void Check();

  // Fails all running and future collectives. Returns immediately. Callable
  // from any thread.
  virtual void Abort(const std::string& why) noexcept = 0;

  // Returns times of the collectives since the last call, at most 4096.
  virtual std::vector<CollectiveTime> TakeTimes() = 0;

  // Starts a collective and makes `stream` wait for it.
  void Run(const Collective& collective, Stream& stream) {
    Wait(Start(collective, stream), stream);
  }
};

}  // namespace fusor::runtime
