#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/backend/backend.h"

namespace fusor::runtime {

class Communicator;

// The device of one rank, the stream of its work, and the other ranks. A view:
// all three must outlive it.
struct RankDevice {
  Device& device;
  Stream& stream;
  Communicator* communicator;  // null for a single rank

  int rank() const;        // 0 without a communicator
  int world_size() const;  // 1 without a communicator

  // Allocates device memory on which collectives operate.
  std::unique_ptr<Memory> AllocateShared(size_t bytes) const;
  // Blocks until the stream is idle. Throws if a collective has failed, because
  // results are then invalid.
  void Synchronize() const;

  // --- Collectives: every rank must call these. They block. ------------------

  // Copies rank 0's device memory to every rank.
  void Broadcast(void* data, int64_t bytes) const;
  // Copies rank 0's host bytes to every rank.
  void BroadcastHost(std::span<uint8_t> bytes) const;
  // Concatenates all ranks' bytes in rank order; sizes must be equal.
  std::vector<uint8_t> AllGather(std::span<const uint8_t> own) const;
};

}  // namespace fusor::runtime
