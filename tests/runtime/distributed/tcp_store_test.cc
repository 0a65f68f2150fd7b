#include "runtime/distributed/tcp_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <random>
#include <thread>

#include "ir/support/error.h"
#include "tests/testing/free_port.h"

namespace fusor::runtime {
namespace {

using std::chrono::milliseconds;
using test::FreePort;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr milliseconds kPatience{60'000};

StoreOptions Options(int port, int rank, int world_size) {
  return {.host = "127.0.0.1",
          .port = port,
          .token = "run 1",
          .rank = rank,
          .world_size = world_size,
          .timeout = kPatience};
}

// Connects a rank. Returns the error, or "let in".
std::string Rejection(const StoreOptions& options) {
  try {
    const TcpStore store(options);
  } catch (const Error& e) {
    return fmt::format("{}: {}", static_cast<int>(e.code()), e.what());
  }
  return "let in";
}

// Runs all ranks as threads of this process.
void OnRanks(int world_size, const std::function<void(TcpStore&)>& run) {
  const int port = FreePort();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([=, &run] {
      TcpStore store(Options(port, rank, world_size));
      run(store);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(TcpStore, KeepsValuesAndNumbers) {
  OnRanks(3, [](TcpStore& store) {
    if (store.rank() == 1) store.Set("who", std::string("me\0too", 6));
    EXPECT_EQ(store.Get("who", kPatience), std::string("me\0too", 6));
    store.Add("sum", 1 << store.rank());
    store.Gather("added", "", kPatience);
    EXPECT_EQ(store.Add("sum", 0), 7);
    EXPECT_EQ(store.address(), "127.0.0.1");
  });
}

TEST(TcpStore, GathersInTheOrderOfRanks) {
  OnRanks(4, [](TcpStore& store) {
    const std::string own(static_cast<size_t>(store.rank()) * 100'000, 'x');
    const auto all = store.Gather("g", own, kPatience);
    ASSERT_EQ(all.size(), 4U);
    for (size_t r = 0; r < 4; ++r) EXPECT_EQ(all[r].size(), r * 100'000);
  });
}

TEST(TcpStore, SaysWhichKeyIsNotThere) {
  TcpStore store(Options(FreePort(), 0, 1));
  try {
    store.Get("nothing", milliseconds(20));
    FAIL() << "there is something";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kPeerLost);
    EXPECT_THAT(e.what(), AllOf(HasSubstr("127.0.0.1:"), HasSubstr("nothing"),
                                HasSubstr("not there after 20 ms")));
  }
}

TEST(TcpStore, NamesRanksThatAreMissing) {
  const int port = FreePort();
  StoreOptions options = Options(port, 0, 4);
  options.timeout = milliseconds(1000);
  std::thread two([port] {
    StoreOptions o = Options(port, 2, 4);
    o.timeout = milliseconds(1000);
    EXPECT_THAT(Rejection(o), HasSubstr("missing"));
  });
  EXPECT_THAT(Rejection(options),
              AllOf(HasSubstr("75: rendezvous at 127.0.0.1:"),
                    HasSubstr("ranks 1, 3 are missing after 1 s")));
  two.join();
}

TEST(TcpStore, NamesRankZeroWhenNobodyServes) {
  StoreOptions options = Options(FreePort(), 1, 2);
  options.timeout = milliseconds(300);
  EXPECT_THAT(Rejection(options), HasSubstr("75: rendezvous at 127.0.0.1:"));
  EXPECT_THAT(Rejection(options), HasSubstr("rank 0 is missing"));
}

TEST(TcpStore, NamesAHostThatMeansNothing) {
  StoreOptions options = Options(FreePort(), 1, 2);
  options.host = "no-such-host.invalid";
  options.timeout = kPatience;
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(Rejection(options),
              AllOf(HasSubstr("2: rendezvous at no-such-host.invalid:"),
                    testing::ContainsRegex(
                        "cannot resolve the host name no-such-host.invalid: "
                        "(Name or service not known|Temporary failure)")));
  EXPECT_LT(std::chrono::steady_clock::now() - start, kPatience / 2)
      << "waiting cannot help";
}

TEST(FindInterface, ByNameOrAddress) {
  EXPECT_EQ(FindInterface("127.0.0.1").name, "lo");
  EXPECT_EQ(FindInterface("lo").address, "127.0.0.1");
  EXPECT_EQ(FindInterface("nowhere0").name, "");
  EXPECT_EQ(FindInterface("10.255.255.254").name, "");
}

TEST(TcpStore, RejectsWhoDoesNotBelongAndWaitsForWhoDoes) {
  const int port = FreePort();
  std::thread zero([port] {
    TcpStore store(Options(port, 0, 2));
    EXPECT_EQ(store.Gather("g", "zero", kPatience)[1], "one");
  });
  StoreOptions wrong = Options(port, 1, 2);
  wrong.token = "run 2";
  EXPECT_THAT(Rejection(wrong), HasSubstr("2: rendezvous at"));
  EXPECT_THAT(Rejection(wrong), HasSubstr("the token is another run's"));
  wrong = Options(port, 1, 3);
  EXPECT_THAT(Rejection(wrong),
              HasSubstr("rank 0 expects 2 ranks, this one 3"));
  // A client that is no rank must not disturb the others.
  const Socket stranger = Socket::Connect(
      "127.0.0.1", port, std::chrono::steady_clock::now() + kPatience);
  stranger.Send("GET / HTTP/1.0\r\n\r\n",
                std::chrono::steady_clock::now() + kPatience);
  TcpStore store(Options(port, 1, 2));
  EXPECT_THAT(Rejection(Options(port, 1, 2)),
              HasSubstr("rank 1 is there already"));
  EXPECT_EQ(store.Gather("g", "one", kPatience)[0], "zero");
  zero.join();
}

TEST(TcpStore, PassesOverPortsThatOthersHave) {
  const Socket taken = Socket::Listen("", 0);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      StoreOptions options = Options(taken.port(), rank, 3);
      options.more_ports = 16;
      TcpStore store(options);
      EXPECT_EQ(store.Gather("g", "x", kPatience).size(), 3U);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(TcpStore, SaysWhenItsPortIsTaken) {
  const Socket taken = Socket::Listen("", 0);
  EXPECT_THAT(Rejection(Options(taken.port(), 0, 1)),
              AllOf(HasSubstr("2: cannot listen at *:"), HasSubstr("in use")));
}

// Runs one of 64 processes. Returns its exit status.
int MeetOnce(int port, int rank, int world_size) {
  try {
    TcpStore store(Options(port, rank, world_size));
    const auto all = store.Gather("g", std::to_string(rank), kPatience);
    for (int r = 0; r < world_size; ++r) {
      if (all[r] != std::to_string(r)) return 2;
    }
    return 0;
  } catch (const Error& e) {
    fmt::print(stderr, "rank {}: {}\n", rank, e.what());
    return 1;
  }
}

TEST(TcpStore, BringsTogether64ProcessesInAnyOrder) {
  constexpr int kWorld = 64;
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    std::vector<int> order(kWorld);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    const int port = FreePort();
    std::vector<pid_t> children;
    for (int rank : order) {
      const pid_t child = fork();
      ASSERT_GE(child, 0);
      if (child == 0) _exit(MeetOnce(port, rank, kWorld));
      children.push_back(child);
    }
    for (pid_t child : children) {
      int status = 0;
      ASSERT_EQ(waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0) << "round " << round;
    }
  }
}

}  // namespace
}  // namespace fusor::runtime
