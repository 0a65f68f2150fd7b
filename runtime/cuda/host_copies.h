#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/cuda/context.h"

namespace fusor::cuda {

// Copies host data into device memory, overlapped with earlier work on the
// stream. Each copy passes through one of a few slots, which have pinned and
// device memory:
//
//   host bytes -> pinned slot      by the host, before Copy returns; skipped if
//                                  the bytes are pinned
//   pinned slot -> device slot     on a separate stream
//   device slot -> destination     on the stream itself
//
// So the next batch (or the batches of the next graph) is on the device before
// the stream needs it. The host waits only for a slot whose last copy has not
// finished.
class HostCopies {
 public:
  // The context must outlive it. `steps`: steps whose inputs are copied while
  // earlier work runs.
  HostCopies(const Context& context, int64_t steps);
  ~HostCopies();
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  // Enqueues a copy. The host may change its bytes as soon as this returns.
  void Copy(CUdeviceptr to, const void* host, size_t bytes, CUstream stream);
  // Enqueues a copy and records `copied`. The host must not change its bytes
  // before that event. `pinned`: the bytes are pinned.
  void Copy(CUdeviceptr to, const void* host, size_t bytes, CUstream stream,
            bool pinned, CUevent copied);

 private:
  static constexpr size_t kSmallSlots = 32;
  static constexpr size_t kSmallPerStep = 8;
  static constexpr size_t kLargeSlots = 2;
  static constexpr size_t kSmallBytes = size_t{64} << 10;
  static constexpr size_t kLargeBytes = size_t{64} << 20;

  struct Slot {
    explicit Slot(const Context& context)
        : copied(context, false), taken(context, false) {}
    void* pinned = nullptr;  // null until a copy needs it
    CUdeviceptr device = 0;
    size_t bytes = 0;  // size of each
    bool used = false;
    DriverEvent copied;  // copied from pinned to device memory
    DriverEvent taken;   // copied from the device slot to the destination
  };

  Slot& NextSlot(size_t bytes);
  void Grow(Slot& slot, size_t bytes);
  // Copies in pieces of at most kLargeBytes. `pinned`: whether `host` is.
  void CopyPieces(CUdeviceptr to, const void* host, size_t bytes,
                  CUstream stream, bool pinned);
  void CopyPiece(CUdeviceptr to, const void* host, size_t bytes,
                 CUstream stream, bool pinned);

  const Context& context_;
  CUstream stream_ = nullptr;
  std::vector<std::unique_ptr<Slot>> small_;
  std::vector<std::unique_ptr<Slot>> large_;
  size_t next_small_ = 0;
  size_t next_large_ = 0;
};

}  // namespace fusor::cuda
