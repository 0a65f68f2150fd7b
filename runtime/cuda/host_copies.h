#pragma once

#include <cuda.h>

#include <array>
#include <memory>

#include "runtime/cuda/context.h"

namespace fusor::cuda {

// Copies of the host's data into device memory that overlap what a stream has
// to do before them. Each goes through one of a few slots of pinned memory and
// of device memory:
//
//   the host's bytes -> pinned slot    by the host, before Copy returns,
//                                      unless they are pinned themselves
//   pinned slot -> device slot         on a stream of their own
//   device slot -> its place           on the stream itself
//
// so that the next batch is on the device when the stream comes to it. The host
// waits only for a slot whose last copy is not over.
class HostCopies {
 public:
  // The context must outlive it.
  explicit HostCopies(const Context& context);
  ~HostCopies();
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  // The host may change its bytes as soon as this returns.
  void Copy(CUdeviceptr to, const void* host, size_t bytes, CUstream stream);
  // The host leaves its bytes as they are until `copied` has happened. Without
  // the first step if they are pinned.
  void Copy(CUdeviceptr to, const void* host, size_t bytes, CUstream stream,
            bool pinned, CUevent copied);

 private:
  static constexpr size_t kSmallSlots = 32;
  static constexpr size_t kLargeSlots = 2;
  static constexpr size_t kSmallBytes = size_t{64} << 10;
  static constexpr size_t kLargeBytes = size_t{64} << 20;

  struct Slot {
    explicit Slot(const Context& context)
        : copied(context, false), taken(context, false) {}
    void* pinned = nullptr;  // null where no copy has needed it
    CUdeviceptr device = 0;
    size_t bytes = 0;  // of each
    bool used = false;
    DriverEvent copied;  // from pinned to device memory
    DriverEvent taken;   // from there to its place
  };

  Slot& NextSlot(size_t bytes);
  void Grow(Slot& slot, size_t bytes);
  // `pinned`: whether `host` is.
  void CopyPieces(CUdeviceptr to, const void* host, size_t bytes,
                  CUstream stream, bool pinned);
  void CopyPiece(CUdeviceptr to, const void* host, size_t bytes,
                 CUstream stream, bool pinned);

  const Context& context_;
  CUstream stream_ = nullptr;
  std::array<std::unique_ptr<Slot>, kSmallSlots> small_;
  std::array<std::unique_ptr<Slot>, kLargeSlots> large_;
  size_t next_small_ = 0;
  size_t next_large_ = 0;
};

}  // namespace fusor::cuda
