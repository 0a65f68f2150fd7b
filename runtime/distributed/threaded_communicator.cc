#include "runtime/distributed/threaded_communicator.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "ir/support/error.h"
#include "ir/support/signals_blocked.h"
#include "runtime/backend/backend.h"

namespace fusor::runtime {
namespace {

constexpr size_t kQueue = 4096;  // collectives, and times that are kept
constexpr size_t kThreads = 2;   // collectives that run side by side

double Now() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class ThreadedCommunicator : public Communicator {
 public:
  explicit ThreadedCommunicator(
      std::unique_ptr<ThreadedCollectives> collectives)
      : collectives_(std::move(collectives)) {
    const SignalsBlocked blocked;
    for (std::thread& thread : threads_) {
      thread = std::thread([this] { Work(); });
    }
  }

  ~ThreadedCommunicator() override {
    bool busy;
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      busy = ended_ < started_;
    }
    // Nobody will use what is still to come.
    if (busy) collectives_->Abort();
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  int rank() const override { return collectives_->rank(); }
  int world_size() const override { return collectives_->world_size(); }
  std::string description() const override {
    return collectives_->description();
  }

  int64_t Start(const Collective& collective, Stream& stream) override {
    stream.Synchronize();  // a host stream has nothing pending
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] {
      return failure_ || started_ - ended_ < static_cast<int64_t>(kQueue);
    });
    ThrowFailure();
    queue_[started_ % kQueue] = collective;
    Time(started_) = {
        .started = Now(),
        .bytes = collective.elements * ir::DTypeSize(collective.dtype)};
    const int64_t number = started_++;
    changed_.notify_all();
    return number;
  }

  void Wait(int64_t number, Stream&) override {
    std::unique_lock lock(mutex_);
    FUSOR_ASSERT(number < started_, "collective {} of {}", number, started_);
    changed_.wait(lock, [&] { return failure_ || ended_ > number; });
    if (ended_ <= number) ThrowFailure();
  }

  void Abort(const std::string& why) noexcept override {
    {
      const std::lock_guard lock(mutex_);
      Fail(why);
    }
    changed_.notify_all();
    collectives_->Abort();
  }

  std::vector<CollectiveTime> TakeTimes() override {
    const std::lock_guard lock(mutex_);
    const int64_t kept = ended_ - static_cast<int64_t>(kQueue);
    taken_ = std::max(taken_, kept);
    std::vector<CollectiveTime> times;
    while (taken_ < ended_) times.push_back(Time(taken_++));
    return times;
  }

 private:
  CollectiveTime& Time(int64_t number) { return times_[number % kQueue]; }

  // The first reason is the one that counts.
  void Fail(const std::string& why) noexcept {
    if (!failure_) failure_ = why;
  }

  void ThrowFailure() const {
    if (failure_) ThrowError(ErrorCode::kPeerLost, *failure_);
  }

  void Work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock,
                    [&] { return stop_ || (!posting_ && begun_ < started_); });
      if (stop_) return;
      const int64_t number = begun_++;
      posting_ = true;
      Time(number).begun = Now();
      RunOne(number, lock);
      if (failure_) {
        // What was started after it has no end.
        changed_.notify_all();
        changed_.wait(lock, [&] { return stop_; });
        return;
      }
    }
  }

  // Unlocks meanwhile. It has ended once those before it have.
  void RunOne(int64_t number, std::unique_lock<std::mutex>& lock) {
    const Collective collective = queue_[number % kQueue];
    const bool failed = failure_.has_value();
    bool posted = false;
    const auto post = [&] {
      {
        const std::lock_guard relock(mutex_);
        posted = true;
        posting_ = false;
      }
      changed_.notify_all();
    };
    lock.unlock();
    std::string why;
    try {
      if (!failed) collectives_->Run(collective, post);
    } catch (const std::exception& e) {
      why = e.what();
    }
    lock.lock();
    if (!posted) posting_ = false;
    if (!why.empty()) Fail(why);
    changed_.wait(lock, [&] { return failure_ || ended_ == number; });
    if (failure_) return;
    CollectiveTime& time = Time(number);
    time.ended = Now();
    if (number > 0) time.begun = std::max(time.begun, Time(number - 1).ended);
    ++ended_;
    changed_.notify_all();
  }

  const std::unique_ptr<ThreadedCollectives> collectives_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<Collective, kQueue> queue_;
  std::array<CollectiveTime, kQueue> times_;
  int64_t started_ = 0;
  int64_t begun_ = 0;
  int64_t ended_ = 0;
  int64_t taken_ = 0;     // of times_
  bool posting_ = false;  // the last that has begun: the next one waits
  bool stop_ = false;
  std::optional<std::string> failure_;
  std::array<std::thread, kThreads> threads_;
};

}  // namespace

Communicator::~Communicator() = default;
void Communicator::Prepare(const Collective&) {}
void Communicator::Check() {}
ThreadedCollectives::~ThreadedCollectives() = default;

std::unique_ptr<Memory> Communicator::Allocate(Device& device, size_t bytes) {
  return device.Allocate(bytes);
}

std::unique_ptr<Executable> Communicator::Capture(
    Stream&, const std::function<void()>&) {
  return nullptr;
}

std::string_view CollectiveName(CollectiveKind kind) {
  constexpr std::string_view kNames[] = {"all_reduce", "reduce_scatter",
                                         "all_gather", "broadcast", "barrier"};
  return kNames[static_cast<int>(kind)];
}

std::unique_ptr<Communicator> RunInThread(
    std::unique_ptr<ThreadedCollectives> collectives) {
  return std::make_unique<ThreadedCommunicator>(std::move(collectives));
}

}  // namespace fusor::runtime
