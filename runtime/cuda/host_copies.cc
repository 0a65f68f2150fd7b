#include "runtime/cuda/host_copies.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace fusor::cuda {

HostCopies::HostCopies(const Context& context, int64_t steps)
    : context_(context),
      small_(std::max(kSmallSlots, kSmallPerStep * static_cast<size_t>(steps))),
      large_(std::max(kLargeSlots, static_cast<size_t>(steps))) {
  const Driver& driver = context.Enter();
  driver.Check(driver.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING),
               "cuStreamCreate");
}

HostCopies::~HostCopies() {
  const Driver& driver = context_.EnterNoThrow();
  Driver::Ignore(driver.cuStreamSynchronize(stream_));
  const auto free_slot = [&](const std::unique_ptr<Slot>& slot) {
    if (slot == nullptr) return;
    if (slot->used)
      Driver::Ignore(driver.cuEventSynchronize(slot->taken.get()));
    if (slot->pinned != nullptr) {
      Driver::Ignore(driver.cuMemFreeHost(slot->pinned));
    }
    Driver::Ignore(driver.cuMemFree(slot->device));
  };
  for (const auto& slot : small_) free_slot(slot);
  for (const auto& slot : large_) free_slot(slot);
  Driver::Ignore(driver.cuStreamDestroy(stream_));
}

void HostCopies::Copy(CUdeviceptr to, const void* host, size_t bytes,
                      CUstream stream) {
  CopyPieces(to, host, bytes, stream, /*pinned=*/false);
}

void HostCopies::Copy(CUdeviceptr to, const void* host, size_t bytes,
                      CUstream stream, bool pinned, CUevent copied) {
  CopyPieces(to, host, bytes, stream, pinned);
  const Driver& driver = context_.Enter();
  driver.Check(driver.cuEventRecord(copied, stream_), "cuEventRecord");
}

void HostCopies::CopyPieces(CUdeviceptr to, const void* host, size_t bytes,
                            CUstream stream, bool pinned) {
  const auto* from = static_cast<const char*>(host);
  for (size_t done = 0; done < bytes; done += kLargeBytes) {
    CopyPiece(to + done, from + done, std::min(bytes - done, kLargeBytes),
              stream, pinned);
  }
}

HostCopies::Slot& HostCopies::NextSlot(size_t bytes) {
  const bool is_small = bytes <= kSmallBytes;
  std::unique_ptr<Slot>& slot = is_small
                                    ? small_[next_small_++ % small_.size()]
                                    : large_[next_large_++ % large_.size()];
  if (slot == nullptr) slot = std::make_unique<Slot>(context_);
  if (slot->bytes < bytes) Grow(*slot, is_small ? kSmallBytes : bytes);
  return *slot;
}

void HostCopies::Grow(Slot& slot, size_t bytes) {
  const Driver& driver = context_.Enter();
  if (slot.used) {
    driver.Check(driver.cuEventSynchronize(slot.taken.get()),
                 "cuEventSynchronize");
  }
  if (slot.pinned != nullptr) {
    driver.Check(driver.cuMemFreeHost(std::exchange(slot.pinned, nullptr)),
                 "cuMemFreeHost");
  }
  if (slot.bytes > 0) {
    slot.bytes = 0;
    driver.Check(driver.cuMemFree(std::exchange(slot.device, 0)), "cuMemFree");
  }
  driver.Check(driver.cuMemAlloc(&slot.device, bytes), "cuMemAlloc");
  slot.bytes = bytes;
}

void HostCopies::CopyPiece(CUdeviceptr to, const void* host, size_t bytes,
                           CUstream stream, bool pinned) {
  const Driver& driver = context_.Enter();
  Slot& slot = NextSlot(bytes);
  if (slot.used) {
    if (!pinned) {
      driver.Check(driver.cuEventSynchronize(slot.copied.get()),
                   "cuEventSynchronize");
    }
    driver.Check(driver.cuStreamWaitEvent(stream_, slot.taken.get(), 0),
                 "cuStreamWaitEvent");
  }
  if (!pinned) {
    if (slot.pinned == nullptr) {
      driver.Check(driver.cuMemHostAlloc(&slot.pinned, slot.bytes, 0),
                   "cuMemHostAlloc");
    }
    std::memcpy(slot.pinned, host, bytes);
    host = slot.pinned;
  }
  driver.Check(driver.cuMemcpyHtoDAsync(slot.device, host, bytes, stream_),
               "cuMemcpyHtoDAsync");
  driver.Check(driver.cuEventRecord(slot.copied.get(), stream_),
               "cuEventRecord");
  driver.Check(driver.cuStreamWaitEvent(stream, slot.copied.get(), 0),
               "cuStreamWaitEvent");
  driver.Check(driver.cuMemcpyDtoDAsync(to, slot.device, bytes, stream),
               "cuMemcpyDtoDAsync");
  driver.Check(driver.cuEventRecord(slot.taken.get(), stream), "cuEventRecord");
  slot.used = true;
}

}  // namespace fusor::cuda
