#pragma once

// The state that everything on one GPU shares.

#include <cuda.h>

#include <cstddef>
#include <string>

#include "runtime/cuda/driver.h"

namespace fusor::cuda {

// Returns the ordinal of the GPU that this process trains on: the local rank
// (runtime::FindRankEnvironment). Returns 0 if the process sees at most one
// GPU, e.g. because CUDA_VISIBLE_DEVICES gives each rank a different one.
// Throws kDevice if there are several GPUs, but not one for this local rank.
int DeviceOfRank();

// The primary context of a GPU, retained while this lives.
class Context {
 public:
  // Throws kDevice if there is no such GPU.
  explicit Context(int ordinal);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // Makes this context current on the calling thread and returns the driver.
  const Driver& Enter() const;
  // The same for destructors: returns the driver even if that fails.
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

// A driver event. The context must outlive it.
class DriverEvent {
 public:
  // `timing` slightly increases the cost of each record.
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
