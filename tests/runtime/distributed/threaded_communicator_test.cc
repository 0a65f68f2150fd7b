#include "runtime/distributed/threaded_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "ir/support/error.h"
#include "runtime/backend/backend.h"

namespace fusor::runtime {
namespace {

class HostStream : public Stream {
 public:
  void Launch(const Executable&, void* const*, size_t) override {}
  void CopyToDevice(void*, const void*, size_t) override {}
  void CopyToHost(void*, const void*, size_t) override {}
  void Record(Event&) override {}
  void Wait(const Event&) override {}
  void Synchronize() override {}
};

// Lets the test decide when collectives end.
struct Gate {
  std::mutex mutex;
  std::condition_variable changed;
  int allowed = 0;
  bool posts = false;  // the next collective may start while one runs
  int running = 0;
  bool aborted = false;
  std::vector<int64_t> ran;  // element counts of finished collectives
  std::thread::id thread;

  void AwaitRunning(int count) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return running == count; });
  }

  void Allow(int count) {
    {
      const std::lock_guard lock(mutex);
      allowed += count;
    }
    changed.notify_all();
  }
};

class GatedCollectives : public ThreadedCollectives {
 public:
  explicit GatedCollectives(Gate& gate) : gate_(gate) {}
  int rank() const override { return 0; }
  int world_size() const override { return 2; }
  std::string description() const override { return "gated"; }
  void Run(const Collective& c, const std::function<void()>& posted) override {
    std::unique_lock lock(gate_.mutex);
    ++gate_.running;
    gate_.changed.notify_all();
    if (gate_.posts) {
      lock.unlock();
      posted();
      lock.lock();
    }
    gate_.changed.wait(lock,
                       [&] { return gate_.allowed > 0 || gate_.aborted; });
    FUSOR_CHECK(!gate_.aborted, kPeerLost, "aborted");
    --gate_.allowed;
    --gate_.running;
    gate_.thread = std::this_thread::get_id();
    FUSOR_CHECK(c.elements >= 0, kPeerLost, "rank 1 is gone");
    gate_.ran.push_back(c.elements);
  }
  void Abort() noexcept override {
    {
      const std::lock_guard lock(gate_.mutex);
      gate_.aborted = true;
    }
    gate_.changed.notify_all();
  }

 private:
  Gate& gate_;
};

class HostCommunicatorTest : public testing::Test {
 protected:
  int64_t Start(int64_t elements) {
    return communicator_->Start({.elements = elements}, stream_);
  }
  std::string Failure(const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kPeerLost);
      return e.what();
    }
    return "";
  }

  Gate gate_;
  HostStream stream_;
  std::unique_ptr<Communicator> communicator_ =
      RunInThread(std::make_unique<GatedCollectives>(gate_));
};

TEST_F(HostCommunicatorTest, RunsBesideTheCallerInOrder) {
  EXPECT_EQ(Start(10), 0);
  EXPECT_EQ(Start(20), 1);  // returns while the first collective runs
  EXPECT_TRUE(gate_.ran.empty());
  gate_.Allow(1);
  communicator_->Wait(0, stream_);
  EXPECT_EQ(gate_.ran, std::vector<int64_t>{10});
  gate_.Allow(1);
  communicator_->Wait(1, stream_);
  communicator_->Wait(0, stream_);  // ended before
  EXPECT_EQ(gate_.ran, (std::vector<int64_t>{10, 20}));
  EXPECT_NE(gate_.thread, std::this_thread::get_id());
}

TEST_F(HostCommunicatorTest, TheNextBeginsOnceAllIsPosted) {
  Start(10);
  gate_.AwaitRunning(1);
  Start(20);
  Start(30);
  gate_.Allow(1);
  communicator_->Wait(0, stream_);
  gate_.AwaitRunning(1);  // the second collective, which has not posted
  {
    const std::lock_guard lock(gate_.mutex);
    gate_.posts = true;
  }
  gate_.Allow(1);
  communicator_->Wait(1, stream_);
  gate_.AwaitRunning(1);  // the third collective, which has posted
  Start(40);
  gate_.AwaitRunning(2);  // overlapped with it
  EXPECT_EQ(gate_.ran, (std::vector<int64_t>{10, 20}));
  gate_.Allow(2);
  communicator_->Wait(3, stream_);
  EXPECT_THAT(gate_.ran, testing::UnorderedElementsAre(10, 20, 30, 40));
  const auto times = communicator_->TakeTimes();
  ASSERT_EQ(times.size(), 4U);
  for (size_t i = 1; i < 4; ++i) EXPECT_GE(times[i].begun, times[i - 1].ended);
}

TEST_F(HostCommunicatorTest, AFailureEndsWhatRunsBesideIt) {
  gate_.posts = true;
  Start(-1);
  Start(20);
  gate_.AwaitRunning(2);
  gate_.Allow(2);
  EXPECT_EQ(Failure([&] { communicator_->Wait(1, stream_); }),
            "rank 1 is gone");
}

TEST_F(HostCommunicatorTest, TellsTimes) {
  Start(10);
  gate_.Allow(1);
  communicator_->Wait(0, stream_);
  const auto times = communicator_->TakeTimes();
  ASSERT_EQ(times.size(), 1U);
  EXPECT_EQ(times[0].bytes, 40);
  EXPECT_LE(times[0].started, times[0].begun);
  EXPECT_LE(times[0].begun, times[0].ended);
  EXPECT_TRUE(communicator_->TakeTimes().empty());
}

TEST_F(HostCommunicatorTest, AFailureEndsWhatFollows) {
  Start(10);
  Start(-1);
  Start(30);
  gate_.Allow(3);
  communicator_->Wait(0, stream_);
  EXPECT_EQ(Failure([&] { communicator_->Wait(2, stream_); }),
            "rank 1 is gone");
  EXPECT_EQ(Failure([&] { Start(40); }), "rank 1 is gone");
  EXPECT_EQ(gate_.ran, std::vector<int64_t>{10});
}

TEST_F(HostCommunicatorTest, AbortEndsAWait) {
  Start(10);
  std::thread other([&] { communicator_->Abort("rank 1 was killed"); });
  EXPECT_EQ(Failure([&] { communicator_->Wait(0, stream_); }),
            "rank 1 was killed");
  other.join();
}

TEST_F(HostCommunicatorTest, EndsWhileACollectiveRuns) {
  Start(10);
  communicator_.reset();
  EXPECT_TRUE(gate_.aborted);
}

}  // namespace
}  // namespace fusor::runtime
