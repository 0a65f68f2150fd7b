#include "runtime/cuda/nccl_communicator.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "ir/support/error.h"
#include "runtime/cuda/context.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/nccl_api.h"
#include "runtime/signals_blocked.h"

namespace fusor::cuda {
namespace {

using runtime::Collective;
using runtime::CollectiveKind;
using runtime::CollectiveTime;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr int64_t kKept = 4096;  // collectives whose events and times are kept
constexpr milliseconds kPoll{5};
// For what should be immediate: giving up, and saying goodbye.
constexpr milliseconds kGoodbye{5'000};

double Seconds(Clock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

ncclDataType_t TypeOf(ir::DType dtype) {
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

class NcclCommunicator : public runtime::Communicator {
 public:
  NcclCommunicator(runtime::TcpStore& store,
                   const runtime::CommunicatorOptions& options)
      : nccl_(LoadNccl()),
        context_(DeviceOfRank()),
        timeout_(options.timeout),
        rank_(store.rank()),
        world_size_(store.world_size()) {
    for (auto& event : ended_events_) {
      event = std::make_unique<DriverEvent>(context_, false);
    }
    CreateStream();
    try {
      Connect(store);
    } catch (...) {
      GiveUp();
      Driver::Ignore(context_.EnterNoThrow().cuStreamDestroy(stream_));
      throw;
    }
    const runtime::SignalsBlocked blocked;
    watch_ = std::thread([this] { Watch(); });
  }

  ~NcclCommunicator() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    watch_.join();
    // Nobody will use what is still to come.
    if (failed_ || num_ended_ < num_started_) {
      GiveUp();
    } else {
      SayGoodbye();
    }
    const Driver& driver = context_.EnterNoThrow();
    if (!hangs_) Driver::Ignore(driver.cuStreamSynchronize(stream_));
    if (!hangs_) Driver::Ignore(driver.cuMemFree(barrier_));
    if (!hangs_) Driver::Ignore(driver.cuStreamDestroy(stream_));
  }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  std::string description() const override {
    int version = 0;
    nccl_.ncclGetVersion(&version);
    return fmt::format("NCCL {}.{}.{}", version / 10000, version % 10000 / 100,
                       version % 100);
  }

  void Register(void* memory, size_t bytes) override {
    ThrowFailure();
    context_.Enter();
    void* handle = nullptr;
    Settle(nccl_.ncclCommRegister(comm_, memory, bytes, &handle),
           "ncclCommRegister");
    if (handle != nullptr) registered_.push_back(handle);
  }

  int64_t Start(const Collective& collective,
                runtime::Stream& stream) override {
    ThrowFailure();
    const Driver& driver = context_.Enter();
    const int64_t number = num_started_;
    FUSOR_CHECK(number - num_ended_ < kKept, kPeerLost,
                "rank {}: {} collectives wait for others", rank_, kKept);
    const CUevent ended = EndOf(number);
    // The event serves twice: what the stream has to do before, then the end.
    driver.Check(driver.cuEventRecord(ended, DriverStreamOf(stream)),
                 "cuEventRecord");
    driver.Check(driver.cuStreamWaitEvent(stream_, ended, 0),
                 "cuStreamWaitEvent");
    Mark& mark = marks_[number % kKept];
    mark.communicator = this;
    mark.started = Clock::now();
    mark.bytes = collective.elements * ir::DTypeSize(collective.dtype);
    driver.Check(driver.cuLaunchHostFunc(stream_, &OnBegin, &mark),
                 "cuLaunchHostFunc");
    ++num_started_;
    try {
      Enqueue(collective);
    } catch (const Error& error) {
      Fail(error.what());
      throw;
    }
    driver.Check(driver.cuLaunchHostFunc(stream_, &OnEnd, &mark),
                 "cuLaunchHostFunc");
    driver.Check(driver.cuEventRecord(ended, stream_), "cuEventRecord");
    return number;
  }

  void Wait(int64_t number, runtime::Stream& stream) override {
    ThrowFailure();
    FUSOR_ASSERT(number < num_started_ && number >= num_started_ - kKept,
                 "collective {} of {}", number, num_started_.load());
    const Driver& driver = context_.Enter();
    driver.Check(
        driver.cuStreamWaitEvent(DriverStreamOf(stream), EndOf(number), 0),
        "cuStreamWaitEvent");
  }

  void Abort(const std::string& why) noexcept override { Fail(why); }

  std::vector<CollectiveTime> TakeTimes() override {
    const int64_t ended = num_ended_;
    taken_ = std::max(taken_, ended - kKept);
    std::vector<CollectiveTime> times;
    for (; taken_ < ended; ++taken_) {
      const Mark& mark = marks_[taken_ % kKept];
      times.push_back({Seconds(mark.started), Seconds(mark.begun),
                       Seconds(mark.ended), mark.bytes});
    }
    return times;
  }

 private:
  // Written by functions of the host in the stream, which cost it some
  // microseconds, but can be read without asking the driver.
  struct Mark {
    NcclCommunicator* communicator = nullptr;
    Clock::time_point started, begun, ended;
    int64_t bytes = 0;
  };
  static void OnBegin(void* data) {
    static_cast<Mark*>(data)->begun = Clock::now();
  }
  static void OnEnd(void* data) {
    auto* mark = static_cast<Mark*>(data);
    mark->ended = Clock::now();
    ++mark->communicator->num_ended_;
  }

  CUevent EndOf(int64_t number) const {
    return ended_events_[number % kKept]->get();
  }

  void CreateStream() {
    const Driver& driver = context_.Enter();
    int least = 0;
    int greatest = 0;
    driver.Check(driver.cuCtxGetStreamPriorityRange(&least, &greatest),
                 "cuCtxGetStreamPriorityRange");
    driver.Check(driver.cuStreamCreateWithPriority(
                     &stream_, CU_STREAM_NON_BLOCKING, greatest),
                 "cuStreamCreateWithPriority");
    driver.Check(driver.cuMemAlloc(&barrier_, sizeof(float)), "cuMemAlloc");
  }

  void Connect(runtime::TcpStore& store) {
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
    Settle(
        nccl_.ncclCommInitRankConfig(&comm_, world_size_, id, rank_, &config),
        "ncclCommInitRankConfig");
  }

  void Check(ncclResult_t result, const char* call) const {
    if (result == ncclSuccess) return;
    FUSOR_CHECK(false, kPeerLost, "rank {}: {}: {}", rank_, call, Why(result));
  }

  // Of a call within a group, which is done when the group is.
  void CheckGrouped(ncclResult_t result, const char* call) const {
    if (result != ncclInProgress) Check(result, call);
  }

  std::string Why(ncclResult_t result) const {
    const char* text = nccl_.ncclGetErrorString(result);
    const char* last = comm_ == nullptr ? "" : nccl_.ncclGetLastError(comm_);
    return last == nullptr || *last == '\0' ? std::string(text)
                                            : fmt::format("{}: {}", text, last);
  }

  // Until the call is done: it may go on after it has returned.
  void Settle(ncclResult_t result, const char* call) {
    const auto deadline = Clock::now() + timeout_;
    while (result == ncclInProgress) {
      ThrowFailure();
      FUSOR_CHECK(Clock::now() < deadline, kPeerLost,
                  "rank {}: {}: not done after {} ms: a peer is missing", rank_,
                  call, timeout_.count());
      Check(nccl_.ncclCommGetAsyncError(comm_, &result), call);
      if (result == ncclInProgress) std::this_thread::sleep_for(kPoll);
    }
    Check(result, call);
  }

  void Enqueue(const Collective& c) {
    if (c.kind == CollectiveKind::kBarrier) {
      auto* scratch = reinterpret_cast<void*>(barrier_);
      return Settle(nccl_.ncclAllReduce(scratch, scratch, 1, ncclFloat32,
                                        ncclSum, comm_, stream_),
                    "ncclAllReduce");
    }
    if (c.elements == 0) return;
    if (c.num_tensors > 0) return MoveTensors(c);
    const auto n = static_cast<size_t>(c.elements);
    const auto size = static_cast<size_t>(ir::DTypeSize(c.dtype));
    const bool even = c.elements % world_size_ == 0;
    auto* data = static_cast<char*>(c.data);
    switch (c.kind) {
      case CollectiveKind::kReduceScatter:
        if (even) {
          const size_t part = n / world_size_;
          return Settle(
              nccl_.ncclReduceScatter(data, data + rank_ * part * size, part,
                                      TypeOf(c.dtype), ncclSum, comm_, stream_),
              "ncclReduceScatter");
        }
        // NCCL's parts are equal: the sum of all has this rank's, too.
        [[fallthrough]];
      case CollectiveKind::kAllReduce:
        return Settle(nccl_.ncclAllReduce(data, data, n, TypeOf(c.dtype),
                                          ncclSum, comm_, stream_),
                      "ncclAllReduce");
      case CollectiveKind::kAllGather:
        return AllGather(c, size);
      case CollectiveKind::kBroadcast:
        return Settle(nccl_.ncclBroadcast(data, data, n * size, ncclInt8,
                                          c.root, comm_, stream_),
                      "ncclBroadcast");
      case CollectiveKind::kBarrier:
        break;
    }
  }

  void AllGather(const Collective& c, size_t size) {
    const int64_t most = (c.elements + world_size_ - 1) / world_size_;
    auto* data = static_cast<char*>(c.data);
    const auto from = [&](int r) {
      return data + static_cast<size_t>(std::min(c.elements, r * most)) * size;
    };
    if (c.elements == most * world_size_) {
      return Settle(nccl_.ncclAllGather(from(rank_), data, most * size,
                                        ncclInt8, comm_, stream_),
                    "ncclAllGather");
    }
    Check(nccl_.ncclGroupStart(), "ncclGroupStart");
    for (int r = 0; r < world_size_; ++r) {
      const auto bytes = static_cast<size_t>(from(r + 1) - from(r));
      CheckGrouped(nccl_.ncclBroadcast(from(r), from(r), bytes, ncclInt8, r,
                                       comm_, stream_),
                   "ncclBroadcast");
    }
    Settle(nccl_.ncclGroupEnd(), "ncclGroupEnd");
  }

  // What lies apart goes in one group, each tensor by itself.
  void MoveTensors(const Collective& c) {
    const std::span tensors(c.tensors, static_cast<size_t>(c.num_tensors));
    const bool gathers = c.kind == CollectiveKind::kAllGather;
    if (!gathers) {
      for (const Collective::Tensor& t : tensors) ClearTail(t, c.dtype);
    }
    Check(nccl_.ncclGroupStart(), "ncclGroupStart");
    for (const Collective::Tensor& t : tensors) {
      if (gathers) {
        const auto bytes = static_cast<size_t>(t.part * ir::DTypeSize(c.dtype));
        CheckGrouped(nccl_.ncclAllGather(t.source, t.target, bytes, ncclInt8,
                                         comm_, stream_),
                     "ncclAllGather");
      } else {
        ScatterSum(t, c.dtype);
      }
    }
    Settle(nccl_.ncclGroupEnd(), "ncclGroupEnd");
  }

  // Of part r of a tensor, as far as it has any.
  static int64_t PartElements(const Collective::Tensor& t, int rank) {
    return std::clamp<int64_t>(t.elements - rank * t.part, 0, t.part);
  }

  // NCCL's parts are equal; what a tensor is short of is not there to be read.
  void ScatterSum(const Collective::Tensor& t, ir::DType dtype) {
    if (t.elements == world_size_ * t.part) {
      return CheckGrouped(nccl_.ncclReduceScatter(
                              t.source, t.target, static_cast<size_t>(t.part),
                              TypeOf(dtype), ncclSum, comm_, stream_),
                          "ncclReduceScatter");
    }
    for (int r = 0; r < world_size_ && PartElements(t, r) > 0; ++r) {
      CheckGrouped(
          nccl_.ncclReduce(static_cast<const char*>(t.source) +
                               r * t.part * ir::DTypeSize(dtype),
                           t.target, static_cast<size_t>(PartElements(t, r)),
                           TypeOf(dtype), ncclSum, r, comm_, stream_),
          "ncclReduce");
    }
  }

  // Zeros behind what this rank's part has.
  void ClearTail(const Collective::Tensor& t, ir::DType dtype) {
    const int64_t size = ir::DTypeSize(dtype);
    const int64_t there = PartElements(t, rank_);
    if (there == t.part) return;
    const Driver& driver = context_.Enter();
    driver.Check(driver.cuMemsetD8Async(
                     reinterpret_cast<CUdeviceptr>(t.target) + there * size, 0,
                     static_cast<size_t>((t.part - there) * size), stream_),
                 "cuMemsetD8Async");
  }

  // --- Failure ---------------------------------------------------------------

  void ThrowFailure() const {
    if (!failed_) return;
    const std::lock_guard lock(mutex_);
    ThrowError(ErrorCode::kPeerLost, failure_);
  }

  // The first reason is the one that counts.
  void Fail(const std::string& why) noexcept {
    {
      const std::lock_guard lock(mutex_);
      if (failed_) return;
      try {
        failure_ = why;
      } catch (const std::exception&) {
        // No memory for words.
      }
      failed_ = true;
    }
    changed_.notify_all();
  }

  // Looks for errors that no call returns, and for collectives without an end.
  void Watch() {
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
        Fail(fmt::format("rank {}: collective {}: {}", rank_, ended,
                         Why(error)));
      } else if (Clock::now() - since > timeout_) {
        Fail(
            fmt::format("rank {}: collective {}: not done after {} ms: a peer "
                        "is missing",
                        rank_, ended, timeout_.count()));
      }
      lock.lock();
    }
  }

  // Ends what runs. The call itself may hang: then it is left alone, with all
  // that it uses.
  void GiveUp() noexcept {
    if (comm_ == nullptr || given_up_.exchange(true)) return;
    hangs_ = !Within(kGoodbye,
                     [end = nccl_.ncclCommAbort, comm = comm_] { end(comm); });
  }

  void SayGoodbye() noexcept {
    for (void* handle : registered_) nccl_.ncclCommDeregister(comm_, handle);
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

  // False when `act` is not done by then; it goes on, in a thread of its own.
  template <typename Act>
  static bool Within(milliseconds time, Act act) noexcept {
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

  const Nccl& nccl_;
  const Context context_;
  const milliseconds timeout_;
  const int rank_;
  const int world_size_;
  ncclComm_t comm_ = nullptr;
  CUstream stream_ = nullptr;
  CUdeviceptr barrier_ = 0;
  std::array<std::unique_ptr<DriverEvent>, kKept> ended_events_;
  std::array<Mark, kKept> marks_;
  std::vector<void*> registered_;
  std::atomic<int64_t> num_started_ = 0;
  std::atomic<int64_t> num_ended_ = 0;
  int64_t taken_ = 0;  // of times
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::atomic<bool> failed_ = false;
  std::string failure_;
  std::atomic<bool> given_up_ = false;
  std::atomic<bool> hangs_ = false;  // NCCL does not come back
  std::thread watch_;
};

}  // namespace

std::unique_ptr<runtime::Communicator> ConnectNccl(
    runtime::TcpStore& store, const runtime::CommunicatorOptions& options) {
  FUSOR_CHECK(!options.deterministic, kUsage,
              "NCCL: no sums in the order of ranks: train on GPUs without "
              "--deterministic");
  FUSOR_CHECK(options.interface.empty(), kUsage,
              "NCCL: network interface {}: set NCCL_SOCKET_IFNAME instead",
              options.interface);
  return std::make_unique<NcclCommunicator>(store, options);
}

}  // namespace fusor::cuda
