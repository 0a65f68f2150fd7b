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

#include "runtime/backend/communicator.h"
#include "runtime/cuda/context.h"
#include "runtime/cuda/nccl/nccl_api.h"
#include "runtime/distributed/tcp_store.h"

namespace fusor::cuda {

// Returns NCCL's name of the dtype. REQUIRES: a float.
ncclDataType_t NcclTypeOf(ir::DType dtype);

// This process's place among the ranks of a store, as NCCL has it. Neither its
// beginning nor its end can keep the process: both are polled, and what takes
// longer than the timeout ends with kPeerLost, as does what a peer or the
// network breaks. While it lives, a thread looks for errors that no call
// returns and for collectives without an end. Where not even ncclCommAbort
// returns, CommunicatorOptions::hangs is called ten seconds later.
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

  // Throws kPeerLost, naming the call and NCCL's reason.
  void Check(ncclResult_t result, const char* call) const;
  // Of a call within a group, which is done when the group is.
  void CheckGrouped(ncclResult_t result, const char* call) const {
    if (result != ncclInProgress) Check(result, call);
  }
  // Until the call is done: it may go on after it has returned.
  void Settle(ncclResult_t result, const char* call) const;
  // For calls with comm(), which an abort by another thread would free under
  // them: while it is held there is none, but for a call that does not return.
  // Throws what has failed.
  std::unique_lock<std::timed_mutex> Hold() const;

  // --- Collectives, counted --------------------------------------------------

  // That the device has been given, and that have ended there.
  int64_t num_started() const { return num_started_; }
  int64_t num_ended() const { return num_ended_; }
  void Started(int64_t count) { num_started_ += count; }
  // From a thread of the driver.
  void Ended() { ++num_ended_; }

  // --- Failure ---------------------------------------------------------------

  bool failed() const { return failed_; }
  void ThrowFailure() const;
  // From any thread: all that runs, and is to come, ends with an error. The
  // first reason is the one that counts.
  void Fail(const std::string& why) noexcept;

  // Of what has failed: until NCCL has let go of all memory. False when it does
  // not.
  bool AwaitAbort() const noexcept;

  // Says goodbye to the other ranks, or gives up what has failed or goes on.
  // False when NCCL does not come back: then nothing that it may use can be
  // freed, and its stream must not be waited for.
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
  // Outlives this where NCCL does not come back.
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
  std::atomic<bool> hangs_ = false;  // NCCL does not come back
  std::thread watch_;
};

}  // namespace fusor::cuda
