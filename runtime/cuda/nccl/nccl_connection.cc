#include "runtime/cuda/nccl/nccl_connection.h"

#include <fmt/core.h>

#include <cstring>
#include <memory>

#include "ir/support/error.h"
#include "ir/support/signals_blocked.h"

namespace fusor::cuda {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kPoll{5};
// A call in progress finishes within this time, or it waits for another rank.
constexpr milliseconds kSoon{1};
// Timeout for calls that hold the lock, which should return at once.
constexpr milliseconds kCall{1'000};
// Timeout for abort and shutdown, which should be immediate.
constexpr milliseconds kGoodbye{5'000};

// Runs `act` in a separate thread. Returns false if it takes longer than
// `time`; it then continues.
template <typename Act>
bool Within(milliseconds time, Act act) noexcept {
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
  };
  try {
    const auto state = std::make_shared<State>();
    const runtime::SignalsBlocked blocked;
    std::thread([state, act] {
      act();
      const std::lock_guard lock(state->mutex);
      state->done = true;
      state->changed.notify_all();
    }).detach();
    std::unique_lock lock(state->mutex);
    return state->changed.wait_for(lock, time, [&] { return state->done; });
  } catch (const std::exception&) {
    return false;
  }
}

// Calls `tell` after 2 * kGoodbye. Threads that still wait for the device then,
// even in a destructor, may wait forever.
void TellLater(const std::function<void(const std::string&)>& tell,
               int rank) noexcept {
  if (!tell) return;
  try {
    const runtime::SignalsBlocked blocked;
    std::thread([tell, rank] {
      std::this_thread::sleep_for(2 * kGoodbye);
      tell(fmt::format("rank {}: ncclCommAbort does not return", rank));
    }).detach();
  } catch (const std::exception&) {
    // No thread could be started.
  }
}

}  // namespace

NcclConnection::NcclConnection(const Context& context, runtime::TcpStore& store,
                               const runtime::CommunicatorOptions& options)
    : nccl_(LoadNccl()),
      timeout_(options.timeout),
      tell_(options.hangs),
      rank_(store.rank()),
      world_size_(store.world_size()) {
  context.Enter();
  try {
    Connect(store);
  } catch (...) {
    GiveUp();
    throw;
  }
  const runtime::SignalsBlocked blocked;
  watch_ = std::thread([this] { Watch(); });
}

void NcclConnection::Connect(runtime::TcpStore& store) {
  ncclUniqueId id;
  if (rank_ == 0) {
    Check(nccl_.ncclGetUniqueId(&id), "ncclGetUniqueId");
    store.Set("nccl/id", std::string(id.internal, sizeof(id.internal)));
  } else {
    const std::string bytes = store.Get("nccl/id", timeout_);
    FUSOR_CHECK(bytes.size() == sizeof(id.internal), kPeerLost,
                "NCCL: an id of {} bytes, expected {}", bytes.size(),
                sizeof(id.internal));
    std::memcpy(id.internal, bytes.data(), bytes.size());
  }
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  Settle(nccl_.ncclCommInitRankConfig(&comm_, world_size_, id, rank_, &config),
         "ncclCommInitRankConfig");
}

void NcclConnection::Check(ncclResult_t result, const char* call) const {
  if (result == ncclSuccess) return;
  FUSOR_CHECK(false, kPeerLost, "rank {}: {}: {}", rank_, call, Why(result));
}

std::string NcclConnection::Why(ncclResult_t result) const {
  const char* text = nccl_.ncclGetErrorString(result);
  // It accepts a null communicator, for errors before there is one.
  const char* last = nccl_.ncclGetLastError(comm_);
  return last == nullptr || *last == '\0' ? std::string(text)
                                          : fmt::format("{}: {}", text, last);
}

void NcclConnection::Settle(ncclResult_t result, const char* call) const {
  const auto begun = Clock::now();
  while (result == ncclInProgress) {
    ThrowFailure();
    Check(nccl_.ncclCommGetAsyncError(comm_, &result), call);
    if (result != ncclInProgress) break;
    const auto waited = Clock::now() - begun;
    FUSOR_CHECK(waited < timeout_, kPeerLost,
                "rank {}: {}: not done after {} ms: a peer is missing", rank_,
                call, timeout_.count());
    if (waited < kSoon) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPoll);
    }
  }
  Check(result, call);
}

std::unique_lock<std::timed_mutex> NcclConnection::Hold() const {
  // An abort that does not return keeps the lock.
  std::unique_lock lock(*calls_, std::defer_lock);
  while (!lock.try_lock_for(kPoll)) ThrowFailure();
  ThrowFailure();
  return lock;
}

void NcclConnection::ThrowFailure() const {
  if (!failed_) return;
  const std::lock_guard lock(mutex_);
  ThrowError(ErrorCode::kPeerLost, failure_);
}

void NcclConnection::Fail(const std::string& why) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (failed_) return;
    try {
      failure_ = why;
    } catch (const std::exception&) {
      // Out of memory: no reason is stored.
    }
    failed_ = true;
  }
  changed_.notify_all();
}

void NcclConnection::Watch() {
  int64_t seen = 0;
  auto since = Clock::now();
  std::unique_lock lock(mutex_);
  while (!stop_) {
    changed_.wait_for(lock, kPoll, [this] { return stop_ || failed_; });
    if (stop_) return;
    lock.unlock();
    if (failed_) return GiveUp();
    ncclResult_t error = ncclSuccess;
    const ncclResult_t asked = nccl_.ncclCommGetAsyncError(comm_, &error);
    if (asked != ncclSuccess) error = asked;
    const int64_t ended = num_ended_;
    if (ended != seen || ended == num_started_) {
      seen = ended;
      since = Clock::now();
    }
    if (error != ncclSuccess && error != ncclInProgress) {
      Fail(fmt::format("rank {}: collective {}: {}", rank_, ended, Why(error)));
    } else if (Clock::now() - since > timeout_) {
      Fail(
          fmt::format("rank {}: collective {}: not done after {} ms: a peer "
                      "is missing",
                      rank_, ended, timeout_.count()));
    }
    lock.lock();
  }
}

bool NcclConnection::End() noexcept {
  if (watch_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    watch_.join();
    // Nobody uses the results of pending collectives.
    if (failed_ || num_ended_ < num_started_) {
      GiveUp();
    } else {
      SayGoodbye();
    }
  }
  return !hangs_;
}

// Aborts running collectives. If ncclCommAbort hangs, leaks it and everything
// that it uses.
void NcclConnection::GiveUp() noexcept {
  if (comm_ == nullptr || given_up_.exchange(true)) return;
  hangs_ = !Within(kGoodbye,
                   [end = nccl_.ncclCommAbort, comm = comm_, calls = calls_] {
                     const std::unique_lock lock(*calls, kCall);
                     end(comm);
                   });
  aborted_ = !hangs_;
  if (hangs_) TellLater(tell_, rank_);
}

bool NcclConnection::AwaitAbort() const noexcept {
  const auto begun = Clock::now();
  while (!aborted_ && !hangs_ && Clock::now() - begun < 2 * kGoodbye) {
    std::this_thread::sleep_for(kPoll);
  }
  return aborted_;
}

void NcclConnection::SayGoodbye() noexcept {
  ncclResult_t result = nccl_.ncclCommFinalize(comm_);
  const auto deadline = Clock::now() + kGoodbye;
  while (result == ncclInProgress && Clock::now() < deadline) {
    std::this_thread::sleep_for(kPoll);
    nccl_.ncclCommGetAsyncError(comm_, &result);
  }
  if (result != ncclSuccess) return GiveUp();
  hangs_ = !Within(kGoodbye, [destroy = nccl_.ncclCommDestroy, comm = comm_] {
    destroy(comm);
  });
}

ncclDataType_t NcclTypeOf(ir::DType dtype) {
  switch (dtype) {
    case ir::DType::kF16:
      return ncclFloat16;
    case ir::DType::kBF16:
      return ncclBfloat16;
    case ir::DType::kF32:
      return ncclFloat32;
    case ir::DType::kF64:
      return ncclFloat64;
    default:
      FUSOR_ASSERT(false, "sums of {}", DTypeName(dtype));
  }
}

}  // namespace fusor::cuda
