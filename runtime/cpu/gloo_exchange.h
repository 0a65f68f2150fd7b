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
#include "runtime/cpu/gloo_context.h"

namespace fusor::cpu {

// Collectives in which each rank sends each other what that one needs, and
// nothing twice: sums are added up where they belong, in the order of ranks,
// out of what has come and the rank's own elements where they are. Messages are
// of at most 2 MiB, so that what has come is added up while the rest travels.
//
// Calls of several threads may run side by side, if all ranks begin them in the
// same order. Each calls `posted` once, when all that it sends and receives is
// with Gloo: until then, no other may begin. They throw what Gloo throws.
class GlooExchange {
 public:
  using Collective = runtime::Collective;
  using Posted = std::function<void()>;

  // Waits of more than `timeout` fail.
  GlooExchange(std::shared_ptr<GlooContext> context,
               std::chrono::milliseconds timeout);

  // Of all elements in one piece.
  void AllReduce(const Collective& c, const Posted& posted);
  // Of one piece or of tensors that lie apart.
  void ReduceScatter(const Collective& c, const Posted& posted);
  // Of tensors that lie apart.
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
  std::vector<std::vector<char>> free_;  // memory of collectives that ended
};

}  // namespace fusor::cpu
