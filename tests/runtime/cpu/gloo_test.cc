// Tests the CPU backend's communicators with one thread per rank.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <functional>
#include <latch>
#include <mutex>
#include <random>
#include <thread>

#include "ir/interpreter/host_tensor.h"
#include "ir/support/error.h"
#include "runtime/backend/backend_loader.h"
#include "runtime/distributed/tcp_store.h"
#include "tests/testing/free_port.h"

namespace fusor::runtime {
namespace {

using ir::DType;
using std::chrono::milliseconds;
using test::FreePort;
using ::testing::HasSubstr;

class GlooTest : public testing::Test {
 protected:
  // Runs `run` on each rank with its communicator.
  void OnRanks(int world_size, const CommunicatorOptions& options,
               const std::function<void(Communicator&)>& run) {
    GiveToRanks(world_size, options,
                [&](std::unique_ptr<Communicator> own) { run(*own); });
  }

  using Owner = std::function<void(std::unique_ptr<Communicator>)>;
  void GiveToRanks(int world_size, const CommunicatorOptions& options,
                   const Owner& run) {
    const int port = FreePort();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world_size; ++rank) {
      threads.emplace_back([&, rank] {
        TcpStore store({.host = "127.0.0.1",
                        .port = port,
                        .rank = rank,
                        .world_size = world_size});
        auto communicator = backend_.Connect(store, options);
        EXPECT_EQ(communicator->rank(), rank);
        EXPECT_EQ(communicator->world_size(), world_size);
        run(std::move(communicator));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  Backend& backend_ = LoadBackend("cpu");
  std::unique_ptr<Device> device_ =
      backend_.OpenDevice(0, BackendOptions{.threads = 1});
  std::unique_ptr<Stream> stream_ = device_->CreateStream();
};

// Returns n numbers of a rank. They and sums of few are exact in every dtype.
std::vector<double> Whole(int rank, int64_t n) {
  std::vector<double> numbers;
  for (int64_t i = 0; i < n; ++i) {
    numbers.push_back(static_cast<double>((i * 7 + rank * 3) % 17 - 8));
  }
  return numbers;
}

std::vector<double> Normal(int rank, int64_t n) {
  std::mt19937 random(static_cast<uint32_t>(rank + 1));
  std::normal_distribution<double> normal;
  std::vector<double> numbers;
  for (int64_t i = 0; i < n; ++i) numbers.push_back(normal(random));
  return numbers;
}

std::vector<uint8_t> Bytes(DType dtype, const std::vector<double>& numbers) {
  const auto n = static_cast<int64_t>(numbers.size());
  ir::Tensor tensor{{dtype, {n}, {}}, {}};
  for (double x : numbers) tensor.data.push_back(ir::RoundTo(dtype, x));
  return ir::TensorBytes(tensor);
}

std::vector<double> Numbers(DType dtype, const std::vector<uint8_t>& bytes) {
  const auto n = static_cast<int64_t>(bytes.size()) / ir::DTypeSize(dtype);
  const auto tensor = ir::LoadTensor({dtype, {n}, {}}, bytes.data());
  return {tensor.data.begin(), tensor.data.end()};
}

constexpr DType kSummed[] = {DType::kF64, DType::kF32, DType::kF16,
                             DType::kBF16};

TEST_F(GlooTest, SumsEveryTypeAtEverySize) {
  for (const bool deterministic : {false, true}) {
    for (const int world : {1, 2, 3, 4}) {
      OnRanks(world, {.deterministic = deterministic}, [&](Communicator& c) {
        for (const DType dtype : kSummed) {
          for (const int64_t n : {0, 1, 2, 3, 7, 8, 9, 63, 1000, 70'001}) {
            std::vector<uint8_t> data = Bytes(dtype, Whole(c.rank(), n));
            c.Run({.data = data.data(), .elements = n, .dtype = dtype},
                  *stream_);
            std::vector<double> sum(static_cast<size_t>(n));
            for (int r = 0; r < world; ++r) {
              const auto part = Whole(r, n);
              for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
            }
            EXPECT_EQ(Numbers(dtype, data), sum)
                << ir::DTypeName(dtype) << " " << n << " on " << world;
          }
        }
      });
    }
  }
}

TEST_F(GlooTest, RanksGetTheSameBitsEachTime) {
  for (const bool deterministic : {false, true}) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      std::mutex mutex;
      std::vector<std::vector<uint8_t>> results;
      for (int repeat = 0; repeat < 3; ++repeat) {
        OnRanks(4, {.deterministic = deterministic}, [&](Communicator& c) {
          auto data = Bytes(dtype, Normal(c.rank(), 10'007));
          c.Run({.data = data.data(), .elements = 10'007, .dtype = dtype},
                *stream_);
          const std::lock_guard lock(mutex);
          results.push_back(std::move(data));
        });
      }
      ASSERT_EQ(results.size(), 12U);
      for (const auto& result : results) EXPECT_EQ(result, results[0]);
    }
  }
}

TEST_F(GlooTest, DeterministicSumsAddRankAfterRank) {
  constexpr int64_t kElements = 5'003;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const std::vector<double> parts[] = {
        Normal(0, kElements), Normal(1, kElements), Normal(2, kElements)};
    std::vector<double> expected(kElements);
    for (size_t i = 0; i < kElements; ++i) {
      float sum = 0;
      for (const std::vector<double>& part : parts) {
        sum += static_cast<float>(ir::RoundTo(dtype, part[i]));
      }
      expected[i] = ir::RoundTo(dtype, sum);
    }
    OnRanks(3, {.deterministic = true}, [&](Communicator& c) {
      auto data = Bytes(dtype, Normal(c.rank(), kElements));
      c.Run({.data = data.data(), .elements = kElements, .dtype = dtype},
            *stream_);
      EXPECT_EQ(Numbers(dtype, data), expected) << ir::DTypeName(dtype);
    });
  }
}

TEST_F(GlooTest, SumsOf16BitKeepWhatIsNotFinite) {
  const double inf = INFINITY;
  for (const bool deterministic : {false, true}) {
    OnRanks(2, {.deterministic = deterministic}, [&](Communicator& c) {
      for (const DType dtype : {DType::kF16, DType::kBF16}) {
        // Eight elements, to cover the vector loop.
        std::vector<double> mine{inf, -inf, NAN, 1, 0, 65504, 2, 3};
        if (c.rank() == 1) mine = {inf, inf, 1, NAN, 0, 65504, -2, 3};
        std::vector<uint8_t> data = Bytes(dtype, mine);
        c.Run({.data = data.data(), .elements = 8, .dtype = dtype}, *stream_);
        const std::vector<double> sum = Numbers(dtype, data);
        EXPECT_EQ(sum[0], inf);
        for (const size_t i : {1, 2, 3}) EXPECT_TRUE(std::isnan(sum[i])) << i;
        EXPECT_EQ(sum[4], 0);
        EXPECT_EQ(sum[5] == inf, dtype == DType::kF16);
        EXPECT_EQ(sum[6], 0);
        EXPECT_EQ(sum[7], 6);
      }
    });
  }
}

TEST_F(GlooTest, BroadcastsFromTheRoot) {
  OnRanks(3, {}, [&](Communicator& c) {
    auto data = Bytes(DType::kF32, Normal(c.rank(), 1'001));
    c.Run({.kind = CollectiveKind::kBroadcast,
           .data = data.data(),
           .elements = 1'001,
           .root = 2},
          *stream_);
    EXPECT_EQ(data, Bytes(DType::kF32, Normal(2, 1'001)));
  });
}

TEST_F(GlooTest, ScattersSumsAndGathersThem) {
  for (const int64_t n : {1, 3, 4, 10, 1'001}) {
    OnRanks(4, {}, [&](Communicator& c) {
      auto data = Bytes(DType::kF32, Whole(c.rank(), n));
      c.Run({.kind = CollectiveKind::kReduceScatter,
             .data = data.data(),
             .elements = n},
            *stream_);
      c.Run({.kind = CollectiveKind::kBarrier}, *stream_);
      c.Run({.kind = CollectiveKind::kAllGather,
             .data = data.data(),
             .elements = n},
            *stream_);
      const auto sum = Numbers(DType::kF32, data);
      for (size_t i = 0; i < sum.size(); ++i) {
        double expected = 0;
        for (int r = 0; r < 4; ++r) expected += Whole(r, n)[i];
        EXPECT_EQ(sum[i], expected) << i << " of " << n;
      }
    });
  }
}

// The second tensor is smaller than the sum of its shards.
TEST_F(GlooTest, ScattersAndGathersSeparateTensors) {
  OnRanks(4, {}, [&](Communicator& c) {
    struct Case {
      int64_t n, part;
      std::vector<uint8_t> whole, own, all;
    };
    std::vector<Case> cases{{1'000, 250}, {150, 64}};
    std::vector<Collective::Tensor> scatter, gather;
    for (Case& t : cases) {
      t.whole = Bytes(DType::kF32, Whole(c.rank(), t.n));
      t.own.resize(static_cast<size_t>(4 * t.part));
      t.all.resize(4 * t.own.size());
      scatter.push_back({t.whole.data(), t.own.data(), t.n, t.part});
      gather.push_back({t.own.data(), t.all.data(), t.part, t.part});
    }
    c.Run({.kind = CollectiveKind::kReduceScatter,
           .elements = 4 * (250 + 64),
           .tensors = scatter.data(),
           .num_tensors = 2},
          *stream_);
    c.Run({.kind = CollectiveKind::kAllGather,
           .elements = 4 * (250 + 64),
           .tensors = gather.data(),
           .num_tensors = 2},
          *stream_);
    for (const Case& t : cases) {
      const auto all = Numbers(DType::kF32, t.all);
      for (size_t e = 0; e < all.size(); ++e) {
        double sum = 0;
        for (int r = 0; e < static_cast<size_t>(t.n) && r < 4; ++r) {
          sum += Whole(r, t.n)[e];
        }
        EXPECT_EQ(all[e], sum) << e << " of " << t.n;
      }
    }
  });
}

// Starts collectives of every kind before any has ended: contiguous and of
// separate tensors, large and bucketed, and those that Gloo implements.
TEST_F(GlooTest, CollectivesFollowWithoutAWait) {
  constexpr int64_t kLarge = 600'000, kSmall = 64;
  for (const int world : {2, 3}) {
    OnRanks(world, {.deterministic = true}, [&](Communicator& c) {
      const auto sum = [&](int64_t n) {
        std::vector<double> all(static_cast<size_t>(n));
        for (int r = 0; r < world; ++r) {
          const auto part = Whole(r, n);
          for (size_t i = 0; i < all.size(); ++i) all[i] += part[i];
        }
        return all;
      };
      const auto own = Bytes(DType::kF32, Whole(c.rank(), kLarge));
      std::vector<std::vector<uint8_t>> reduced(4, own);
      const int64_t part = kLarge / world;
      const auto bytes = static_cast<size_t>(4 * part);
      std::vector<uint8_t> scattered(bytes), gathered(bytes * world);
      std::vector<uint8_t> small[2];
      std::vector<Collective::Tensor> packed;
      for (std::vector<uint8_t>& target : small) {
        target.resize(4 * kSmall);
        packed.push_back({own.data(), target.data(), kSmall * world, kSmall});
      }
      const Collective::Tensor scatter{own.data(), scattered.data(), kLarge,
                                       part};
      const Collective::Tensor gather{scattered.data(), gathered.data(), part,
                                      part};
      int64_t last = 0;
      const auto start = [&](const Collective& collective) {
        last = c.Start(collective, *stream_);
      };
      const auto reduce = [&](size_t i) {
        start({.data = reduced[i].data(), .elements = kLarge});
      };
      reduce(0);
      start({.kind = CollectiveKind::kReduceScatter,
             .elements = kLarge,
             .tensors = &scatter,
             .num_tensors = 1});
      c.Wait(last, *stream_);  // the next one gathers it
      start({.kind = CollectiveKind::kAllGather,
             .elements = kLarge,
             .tensors = &gather,
             .num_tensors = 1});
      reduce(1);
      reduce(2);
      start({.kind = CollectiveKind::kReduceScatter,
             .elements = 2 * kSmall * world,
             .tensors = packed.data(),
             .num_tensors = 2});
      start({.kind = CollectiveKind::kBroadcast,
             .data = reduced[3].data(),
             .elements = kLarge,
             .root = 1});
      start({.kind = CollectiveKind::kBarrier});
      c.Wait(last, *stream_);
      const auto expected = sum(kLarge);
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(Numbers(DType::kF32, reduced[i]), expected) << i;
      }
      EXPECT_EQ(Numbers(DType::kF32, gathered), expected);
      EXPECT_EQ(reduced[3], Bytes(DType::kF32, Whole(1, kLarge)));
      for (const std::vector<uint8_t>& target : small) {
        const auto begin = expected.begin() + c.rank() * kSmall;
        EXPECT_EQ(Numbers(DType::kF32, target),
                  std::vector<double>(begin, begin + kSmall));
      }
    });
  }
}

TEST_F(GlooTest, APeerThatStaysAwayIsLostInTime) {
  OnRanks(2, {.timeout = milliseconds(300)}, [&](Communicator& c) {
    if (c.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(900));
      return;
    }
    std::vector<float> data(1000);
    try {
      c.Run({.data = data.data(), .elements = 1000}, *stream_);
      ADD_FAILURE() << "a sum without rank 1";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kPeerLost);
      EXPECT_THAT(e.what(), HasSubstr("rank 0: all_reduce of 1000 elements"));
    }
  });
}

// If an abort fails, these tests last until this timeout.
const CommunicatorOptions kPatient{.timeout = milliseconds(60'000)};

class GlooAbortTest : public GlooTest {
 protected:
  // Starts a broadcast from `root` and aborts it after `delay`. It must end
  // long before the timeout.
  void AbortAfter(milliseconds delay, int root, int64_t elements,
                  std::unique_ptr<Communicator> communicator) {
    const auto begun = std::chrono::steady_clock::now();
    std::vector<float> data(static_cast<size_t>(elements));
    const int64_t number =
        communicator->Start({.kind = CollectiveKind::kBroadcast,
                             .data = data.data(),
                             .elements = elements,
                             .root = root},
                            *stream_);
    std::this_thread::sleep_for(delay);
    communicator->Abort("rank 1 was killed");
    try {
      communicator->Wait(number, *stream_);
      ADD_FAILURE() << "a broadcast without rank 1";
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), HasSubstr("rank"));
    }
    communicator.reset();
    EXPECT_LT(std::chrono::steady_clock::now() - begun, kPatient.timeout / 2);
  }
};

// Aborts before the broadcast has started, as it starts, and later.
TEST_F(GlooAbortTest, EndsAReceptionAtAnyMoment) {
  for (const int delay : {0, 0, 0, 0, 0, 0, 0, 0, 1, 20}) {
    std::latch connected(2), aborted(2);
    GiveToRanks(2, kPatient, [&](std::unique_ptr<Communicator> c) {
      // Rank 1 must be connected, since an abort closes the listener.
      connected.arrive_and_wait();
      if (c->rank() == 0) {
        AbortAfter(milliseconds(delay), 1, 1000, std::move(c));
      }
      aborted.arrive_and_wait();  // otherwise rank 1's exit would end it
    });
  }
}

// Aborts a send whose receiver is frozen after it has received a part.
TEST_F(GlooAbortTest, EndsWhatIsHalfSent) {
  constexpr int64_t kElements = 16 << 20;
  const int port = FreePort();
  StoreOptions options{.host = "127.0.0.1", .port = port, .world_size = 2};
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    options.rank = 1;
    TcpStore store(options);
    const auto communicator = backend_.Connect(store, kPatient);
    std::vector<float> data(kElements);
    communicator->Start({.kind = CollectiveKind::kBroadcast,
                         .data = data.data(),
                         .elements = kElements},
                        *stream_);
    std::this_thread::sleep_for(milliseconds(100));  // sends its request
    raise(SIGSTOP);
    _exit(0);
  }
  TcpStore store(options);
  auto communicator = backend_.Connect(store, kPatient);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  EXPECT_TRUE(WIFSTOPPED(status));
  AbortAfter(milliseconds(100), 0, kElements, std::move(communicator));
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
}

TEST_F(GlooTest, RejectsAnInterfaceThatIsNotThere) {
  const int port = FreePort();
  TcpStore store({.host = "127.0.0.1", .port = port});
  try {
    backend_.Connect(store, {.interface = "nosuch0"});
    FAIL() << "connected";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUsage);
    EXPECT_THAT(e.what(), HasSubstr("network interface nosuch0"));
  }
}

}  // namespace
}  // namespace fusor::runtime
