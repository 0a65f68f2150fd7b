#include "runtime/distributed/rank_monitor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <future>
#include <memory>
#include <thread>

#include "ir/support/error.h"
#include "tests/testing/free_port.h"

namespace fusor::runtime {
namespace {

using std::chrono::milliseconds;
using test::FreePort;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr milliseconds kLong{60'000};

// A rank with its store, its monitor and the loss that the monitor reports.
class Rank {
 public:
  Rank(int port, int rank, int world_size, milliseconds timeout)
      : store_({.host = "127.0.0.1",
                .port = port,
                .rank = rank,
                .world_size = world_size,
                .timeout = kLong}),
        monitor_(std::make_unique<RankMonitor>(
            store_, RankMonitorOptions{.timeout = timeout,
                                       .host = fmt::format("host{}", rank),
                                       .lost = [this](const std::string& why) {
                                         lost_.set_value(why);
                                       }})) {}

  RankMonitor& monitor() { return *monitor_; }
  void Vanish() { monitor_.reset(); }
  std::string AwaitLoss() { return lost_.get_future().get(); }
  bool LostWithin(milliseconds time) {
    return lost_.get_future().wait_for(time) == std::future_status::ready;
  }

 private:
  TcpStore store_;
  std::promise<std::string> lost_;
  std::unique_ptr<RankMonitor> monitor_;
};

// Runs each rank in a thread.
void OnRanks(int world_size, milliseconds timeout,
             const std::function<void(Rank&, int rank)>& run) {
  const int port = FreePort();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([=, &run] {
      Rank own(port, rank, world_size, timeout);
      run(own, rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(RankMonitor, ARankThatVanishesIsNamedToAll) {
  for (int victim : {2, 0}) {
    OnRanks(4, kLong, [victim](Rank& own, int rank) {
      if (rank == victim) return own.Vanish();
      EXPECT_EQ(own.AwaitLoss(),
                fmt::format("rank {} on host{} is gone: the connection ended "
                            "without a word",
                            victim, victim));
    });
  }
}

TEST(RankMonitor, ARankThatFailsSaysWhy) {
  for (int victim : {1, 0}) {
    OnRanks(3, kLong, [victim](Rank& own, int rank) {
      if (rank == victim) return own.monitor().Fail("disk is full");
      EXPECT_EQ(own.AwaitLoss(),
                fmt::format("rank {} on host{} failed: disk is full", victim,
                            victim));
    });
  }
}

TEST(RankMonitor, RanksThatFindTheSameErrorEndWithIt) {
  OnRanks(3, kLong, [](Rank& own, int) {
    own.monitor().Fail("loss is nan");
    EXPECT_FALSE(own.LostWithin(milliseconds(0)));
  });
}

// A rank that leaves is not reported as lost while the others continue.
TEST(RankMonitor, RanksLeaveOneByOne) {
  OnRanks(3, kLong, [](Rank& own, int rank) {
    std::this_thread::sleep_for(milliseconds(100 * rank));
    EXPECT_FALSE(own.LostWithin(milliseconds(100)));
    own.monitor().Leave();
  });
}

// The victim starts no more collectives, although its process is alive.
TEST(RankMonitor, ARankThatIsStuckIsNamedToAll) {
  for (int victim : {1, 0}) {
    OnRanks(3, milliseconds(2000), [victim](Rank& own, int rank) {
      own.monitor().BeganCollective();
      if (rank != victim) own.monitor().BeganCollective();
      EXPECT_EQ(own.AwaitLoss(),
                fmt::format("rank {} on host{} is stuck: 1 collectives begun, "
                            "others 2, and none for 2.0 s",
                            victim, victim));
    });
  }
}

TEST(RankMonitor, ARankThatIsBehindForLessIsWaitedFor) {
  OnRanks(2, milliseconds(2000), [](Rank& own, int rank) {
    for (int i = 0; i < 4; ++i) {
      own.monitor().BeganCollective();
      // The ranks take turns to be ahead.
      std::this_thread::sleep_for(milliseconds(rank == i % 2 ? 500 : 700));
    }
    EXPECT_FALSE(own.LostWithin(milliseconds(0)));
    own.monitor().Leave();
  });
}

// A separate thread sends the heartbeats.
TEST(RankMonitor, ARankThatIsBusyForLongIsAlive) {
  OnRanks(2, milliseconds(2000), [](Rank& own, int rank) {
    if (rank == 0) {
      EXPECT_FALSE(own.LostWithin(milliseconds(4000)));
    } else {
      std::this_thread::sleep_for(milliseconds(4000));
    }
    own.monitor().Leave();
  });
}

// Stops one of two ranks. Each is a process. Returns the error that the other
// reports.
std::string Freeze(int victim) {
  const int port = FreePort();
  const pid_t child = fork();
  if (child == 0) {
    Rank own(port, victim, 2, milliseconds(1000));
    raise(SIGSTOP);
    _exit(0);
  }
  Rank own(port, 1 - victim, 2, milliseconds(1000));
  const std::string why = own.AwaitLoss();
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  return why;
}

TEST(RankMonitor, AFrozenRankIsNamed) {
  for (int victim : {1, 0}) {
    EXPECT_THAT(Freeze(victim),
                StartsWith(fmt::format("rank {} on host{} is frozen or "
                                       "unreachable: not heard of for ",
                                       victim, victim)));
  }
}

TEST(RankMonitor, WhoNeverConnectsIsMissing) {
  const int port = FreePort();
  std::thread one([port] {
    TcpStore store({.host = "127.0.0.1",
                    .port = port,
                    .rank = 1,
                    .world_size = 2,
                    .timeout = kLong});
    // A connection without the token is not accepted as a rank.
    const std::string place = store.Get("monitor", kLong);
    const auto deadline = std::chrono::steady_clock::now() + kLong;
    const Socket stranger =
        Socket::Connect("127.0.0.1", std::stoi(place), deadline);
    stranger.Send(MessageWriter().Add("wrong").Take(), deadline);
    char byte[1];
    EXPECT_THROW(stranger.Receive(byte, deadline), Error);
  });
  try {
    const Rank own(port, 0, 2, milliseconds(1000));
    ADD_FAILURE() << "it is there";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kPeerLost);
    EXPECT_THAT(e.what(),
                HasSubstr("rank 1 is missing: no connection to rank 0 after 1 "
                          "s"));
  }
  one.join();
}

}  // namespace
}  // namespace fusor::runtime
