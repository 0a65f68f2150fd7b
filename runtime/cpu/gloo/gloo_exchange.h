#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "runtime/backend/communicator.h"
#include "runtime/cpu/gloo/gloo_context.h"
#include "runtime/distributed/tcp_store.h"
#include "runtime/distributed/threaded_communicator.h"

namespace fusor::cpu {

// Direct collectives: each rank sends every other rank exactly what it needs.
// The owner of a shard sums it, in rank order, from received elements and its
// own, which are read in place. Messages have at most 2 MiB, so that summation
// overlaps with communication.
//
// Several threads may run collectives concurrently if all ranks start them in
// the same order. Each call invokes `posted` once, when all its sends and
// receives are posted to Gloo; no other collective may start before. Throws
// what Gloo throws.
class GlooExchange {
 public:
  using Collective = runtime::Collective;
  using Posted = std::function<void()>;

  // Waits longer than `timeout` fail.
  GlooExchange(std::shared_ptr<GlooContext> context,
               std::chrono::milliseconds timeout);

  // Reduces `c.data`, one contiguous range.
  void AllReduce(const Collective& c, const Posted& posted);
  // Reduces `c.tensors`, or `c.data` if there are none.
  void ReduceScatter(const Collective& c, const Posted& posted);
  // Gathers `c.tensors`.
  void AllGather(const Collective& c, const Posted& posted);

 private:
  using Tensor = Collective::Tensor;
  using Tensors = std::span<const Tensor>;
  class Scratch;
  class Messages;
  class Contributions;

  int rank() const { return context_->rank; }
  int world_size() const { return context_->size; }

  Tensor InPlace(const Collective& c) const;
  static void ClearEnd(const Collective& c, const Tensor& t, char* part,
                       int64_t there);
  void Reduce(ir::DType dtype, Tensors tensors, const Posted& posted);
  void Gather(int64_t element_bytes, Tensors tensors, const Posted& posted);
  void ReducePacked(const Collective& c, const Posted& posted);
  void GatherPacked(const Collective& c, const Posted& posted);

  std::vector<char> Take(size_t bytes);
  void Give(std::vector<char> memory);

  const std::shared_ptr<GlooContext> context_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::vector<std::vector<char>> free_;  // memory of finished collectives
};

// Connects every rank of the store with every other rank through Gloo's TCP
// transport. Throws kPeerLost on timeout, kUsage if the network interface does
// not exist.
std::unique_ptr<runtime::ThreadedCollectives> ConnectGloo(
    runtime::TcpStore& store, const runtime::CommunicatorOptions& options);

}  // namespace fusor::cpu
