#pragma once

// What everything on one GPU shares.

#include <cuda.h>

#include <cstddef>
#include <string>

#include "runtime/cuda/driver.h"

namespace fusor::cuda {

// The GPU that this process trains on: the first, where there is one alone, as
// for ranks of which each is shown its own, or no rank at all; else that of the
// rank's number on this host (LOCAL_RANK and the like:
// runtime::FindRankEnvironment). Throws kDevice where the host has fewer GPUs
// than ranks, 0 where it has none.
int DeviceOfRank();

// The primary context of a GPU, kept while this lives.
class Context {
 public:
  // Throws kDevice when there is no such GPU.
  explicit Context(int ordinal);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // The driver, with this context current on the calling thread.
  const Driver& Enter() const;
  // For destructors: the driver alone when the context cannot be made current.
  const Driver& EnterNoThrow() const noexcept;

  const std::string& name() const { return name_; }  // "NVIDIA H200"
  int compute_capability() const { return compute_capability_; }  // 90
  int multiprocessors() const { return multiprocessors_; }
  size_t free_bytes() const;

 private:
  int Attribute(CUdevice_attribute attribute) const;

  const Driver& driver_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  std::string name_;
  int compute_capability_ = 0;
  int multiprocessors_ = 0;
};

// An event of the driver. The context must outlive it.
class DriverEvent {
 public:
  // Timing costs a little with each record.
  DriverEvent(const Context& context, bool timing);
  ~DriverEvent();
  DriverEvent(const DriverEvent&) = delete;
  DriverEvent& operator=(const DriverEvent&) = delete;

  CUevent get() const { return event_; }

 private:
  const Context& context_;
  CUevent event_ = nullptr;
};

}  // namespace fusor::cuda
