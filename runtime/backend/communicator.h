#pragma once

// Collectives: what all ranks do together to the memory of each. One
// communicator a process; all ranks start the same collectives in the same
// order, and they run one after the other beside the work of other streams.

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
  kReduceScatter,  // rank r gets the sum of part r; the other parts are lost
  kAllGather,      // part r of every rank becomes rank r's
  kBroadcast,      // every rank gets the root's elements
  kBarrier,        // no data: ends nowhere before it has started everywhere
};
std::string_view CollectiveName(CollectiveKind kind);  // "all_reduce"

// Part r of n elements on W ranks is [r * c, (r + 1) * c) for c = ceil(n / W),
// as far as it lies within n.
struct Collective {
  // Of a collective whose tensors lie apart: one of them.
  struct Tensor {
    const void* source = nullptr;  // this rank's part, or what is to be summed
    void* target = nullptr;        // all ranks' parts, or this rank's
    int64_t elements = 0;          // of source
    int64_t part = 0;              // of each rank

    // What the source has of part `rank`.
    int64_t PartElements(int rank) const {
      return std::clamp<int64_t>(elements - rank * part, 0, part);
    }
  };

  CollectiveKind kind = CollectiveKind::kAllReduce;
  void* data = nullptr;  // device memory, changed in place
  int64_t elements = 0;
  // Of sums: f16, bf16, f32 or f64; of the others, any.
  ir::DType dtype = ir::DType::kF32;
  int root = 0;  // of a broadcast
  // Of an all_gather or a reduce_scatter in place of `data`, where there are
  // any: `elements` is what all ranks' parts of them have. What lies beyond the
  // elements of a source that is summed is 0. They stay as long as the
  // collective runs.
  const Tensor* tensors = nullptr;
  int num_tensors = 0;
};

struct CommunicatorOptions {
  // Of each collective: a peer that has not done its part by then is lost.
  std::chrono::milliseconds timeout{300'000};
  // Sums add rank 0's elements to zero, then rank 1's, and so on; those of 16
  // bit are added up in f32 and rounded once. Otherwise the order is whatever
  // is fastest, the same on all ranks and in each run of as many ranks.
  bool deterministic = false;
  std::string interface;  // of the network; empty: by which rank 0 is reached
  // Called by a thread of its own where the transport does not come back even
  // when it is aborted: what waits for the device then may wait for ever, a
  // destructor too. The process had better end.
  std::function<void(const std::string& why)> hangs{};
};

// What a collective took, for profiles: seconds on the steady clock.
struct CollectiveTime {
  double started = 0;  // by Start
  double begun = 0;    // once those before it had ended
  double ended = 0;
  int64_t bytes = 0;
};

// Calls come from one thread at a time. What goes wrong is thrown, as
// kPeerLost, by the next call; after that no collective runs any more.
class Communicator {
 public:
  virtual ~Communicator();
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  virtual std::string description() const = 0;  // "gloo over 10.0.0.1"

  // Device memory for collectives, as Device::Allocate's; registered where the
  // transport gains by it. All ranks allocate the same, in the same order. The
  // communicator must outlive it.
  virtual std::unique_ptr<Memory> Allocate(Device& device, size_t bytes);

  // Makes ready what a collective of this kind, size and type needs besides its
  // data, so that Start allocates nothing; where nobody has, Start does it.
  virtual void Prepare(const Collective& collective);

  // Runs it once the work that `stream` has been given has ended; returns at
  // once, without allocation. Returns its number, from 0.
  virtual int64_t Start(const Collective& collective, Stream& stream) = 0;
  // What `stream` is given from now on runs once the collective has ended.
  virtual void Wait(int64_t number, Stream& stream) = 0;
  // As Stream::Capture, of work that starts collectives and waits for all of
  // them: to be launched on the same stream, by all ranks in the same order of
  // collectives. To be called by all ranks; null on all of them where the
  // transport or the stream of one has no such thing. The communicator must
  // outlive it.
  virtual std::unique_ptr<Executable> Capture(
      Stream& stream, const std::function<void()>& work);

  // Throws what has gone wrong so far. A stream that waits for a collective
  // that fails goes on all the same: when all that it was given has ended and
  // this does not throw, the results are sound.
  virtual void Check();

  // From any thread: ends all that runs, and is to come, with an error. Returns
  // at once.
  virtual void Abort(const std::string& why) noexcept = 0;

  // Of the collectives since the last call, at most the last 4096.
  virtual std::vector<CollectiveTime> TakeTimes() = 0;

  // Starts it and waits.
  void Run(const Collective& collective, Stream& stream) {
    Wait(Start(collective, stream), stream);
  }
};

}  // namespace fusor::runtime
