#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "runtime/backend/backend.h"
#include "runtime/backend/communicator.h"
#include "runtime/cuda/context.h"
#include "runtime/cuda/nccl/nccl_api.h"
#include "runtime/distributed/tcp_store.h"

namespace fusor::cuda {

// Returns NCCL's dtype. REQUIRES: a float.
ncclDataType_t NcclTypeOf(ir::DType dtype);

// Owns the NCCL communicator of this rank among the ranks of a store. Startup
// and shutdown cannot block the process, because both poll. Timeouts and
// failures of a peer or the network throw kPeerLost. A thread watches for
// asynchronous errors and for collectives that do not end. If ncclCommAbort
// does not return either, CommunicatorOptions::hangs is called ten seconds
// later.
class NcclConnection {
 public:
  NcclConnection(const Context& context, runtime::TcpStore& store,
                 const runtime::CommunicatorOptions& options);
  ~NcclConnection() { End(); }
  NcclConnection(const NcclConnection&) = delete;
  NcclConnection& operator=(const NcclConnection&) = delete;

  const Nccl& nccl() const { return nccl_; }
  ncclComm_t comm() const { return comm_; }
  int rank() const { return rank_; }
  int world_size() const { return world_size_; }

  // --- Calls -----------------------------------------------------------------

  // Throws kPeerLost, with the call and NCCL's reason, unless `result` is
  // success.
  void Check(ncclResult_t result, const char* call) const;
  // Checks a call within a group. It may complete with the group.
  void CheckGrouped(ncclResult_t result, const char* call) const {
    if (result != ncclInProgress) Check(result, call);
  }
  // Waits until the call is done, which may be after it has returned.
  void Settle(ncclResult_t result, const char* call) const;
  // Returns a lock for calls with comm(). While it is held, no other thread
  // aborts comm(), which would free it, unless a call does not return. Throws
  // the failure, if any.
  std::unique_lock<std::timed_mutex> Hold() const;

  // --- Counts of collectives -------------------------------------------------

  // Collectives that were enqueued on the device, and that have ended there.
  int64_t num_started() const { return num_started_; }
  int64_t num_ended() const { return num_ended_; }
  void Started(int64_t count) { num_started_ += count; }
  // Called by a driver thread.
  void Ended() { ++num_ended_; }

  // --- Failure ---------------------------------------------------------------

  bool failed() const { return failed_; }
  void ThrowFailure() const;
  // Ends running and later collectives with an error. Any thread may call it;
  // the first reason is kept.
  void Fail(const std::string& why) noexcept;

  // Waits, after a failure, until NCCL has released all memory. Returns false
  // if it does not.
  bool AwaitAbort() const noexcept;

  // Shuts down with the other ranks, or aborts if something failed or is still
  // running. Returns false if NCCL does not return: then nothing that it may
  // use can be freed, and nobody may wait for its stream.
  bool End() noexcept;

 private:
  void Connect(runtime::TcpStore& store);
  std::string Why(ncclResult_t result) const;
  void Watch();
  void GiveUp() noexcept;
  void SayGoodbye() noexcept;

  const Nccl& nccl_;
  const std::chrono::milliseconds timeout_;
  const std::function<void(const std::string&)> tell_;
  // Outlives this if NCCL does not return.
  const std::shared_ptr<std::timed_mutex> calls_ =
      std::make_shared<std::timed_mutex>();
  const int rank_;
  const int world_size_;
  ncclComm_t comm_ = nullptr;
  std::atomic<int64_t> num_started_ = 0;
  std::atomic<int64_t> num_ended_ = 0;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::atomic<bool> failed_ = false;
  std::string failure_;
  std::atomic<bool> given_up_ = false;
  std::atomic<bool> aborted_ = false;
  std::atomic<bool> hangs_ = false;  // NCCL does not return
  std::thread watch_;
};

// Allocates zeroed memory with ncclMemAlloc and registers it with NCCL, so that
// other GPUs and the network access it without copies to NCCL's buffers. Its
// destructor deregisters it. All ranks must allocate the same sizes in the same
// order. The connection and the context must outlive it. Throws kOutOfMemory,
// kPeerLost.
std::unique_ptr<runtime::Memory> AllocateRegistered(
    const NcclConnection& connection, const Context& context, size_t bytes);

}  // namespace fusor::cuda
