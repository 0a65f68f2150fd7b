// Injects faults into a fake NCCL. Each rank is a process on a fake driver.
// Needs no GPU.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "ir/support/error.h"
#include "tests/runtime/cuda/nccl/nccl_ranks.h"

namespace fusor::test {
namespace {

using runtime::Collective;
using runtime::CollectiveKind;
using std::chrono::milliseconds;
using ::testing::AnyOf;
using ::testing::HasSubstr;

std::string LossOf(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
    return error.what();
  }
  return "nothing was thrown";
}

void InjectOn(const Rank& rank, int where, const char* fault) {
  if (rank.store->rank() == where) rank.inject(fault);
}

// Runs collectives until one fails.
void RunUntilLost(Rank& rank, Collective collective = {.elements = 100}) {
  const auto device = rank.backend.OpenDevice(0, {});
  const auto stream = device->CreateStream();
  const auto memory =
      device->Allocate(static_cast<size_t>(collective.elements) * 4);
  collective.data = memory->data();
  for (int i = 0; i < 1000; ++i) {
    rank.communicator->Run(collective, *stream);
    stream->Synchronize();
    std::this_thread::sleep_for(milliseconds(2));
  }
}

TEST(NcclFaults, ARankThatNeverJoins) {
  OnRanks(2, [](Rank& rank) {
    InjectOn(rank, 1, "hang_init");
    EXPECT_THAT(LossOf([&] { rank.Connect(milliseconds(300)); }),
                HasSubstr("ncclCommInitRankConfig: not done after 300 ms"));
  });
}

TEST(NcclFaults, ARankThatCannotJoin) {
  OnRanks(2, [](Rank& rank) {
    InjectOn(rank, 1, "error_init");
    EXPECT_THAT(LossOf([&] { rank.Connect(milliseconds(300)); }),
                HasSubstr(rank.store->rank() == 1
                              ? "ncclCommInitRankConfig: some error: "
                                "the fake rejects"
                              : "not done after 300 ms"));
  });
}

TEST(NcclFaults, ACollectiveThatFails) {
  for (const char* fault : {"error_at:1", "error_at:2", "error_at:5"}) {
    OnRanks(2, [fault](Rank& rank) {
      InjectOn(rank, 1, fault);
      rank.Connect(milliseconds(500));
      // The other rank waits until its timeout.
      EXPECT_THAT(LossOf([&] { RunUntilLost(rank); }),
                  HasSubstr(rank.store->rank() == 1 ? "remote process exited"
                                                    : "a peer is missing"));
    });
  }
}

TEST(NcclFaults, ACollectiveThatNeverEnds) {
  OnRanks(2, [](Rank& rank) {
    InjectOn(rank, 0, "hang_at:3");
    rank.Connect(milliseconds(300));
    EXPECT_THAT(LossOf([&] { RunUntilLost(rank); }),
                HasSubstr("not done after 300 ms: a peer is missing"));
  });
}

TEST(NcclFaults, RanksThatDisagreeAboutTheSize) {
  OnRanks(2, [](Rank& rank) {
    rank.Connect(milliseconds(500));
    EXPECT_THAT(
        LossOf([&] {
          RunUntilLost(rank, {.elements = 100 + rank.store->rank()});
        }),
        AnyOf(HasSubstr("invalid usage"), HasSubstr("a peer is missing")));
  });
}

TEST(NcclFaults, RanksThatDisagreeAboutTheSizeInOrder) {
  OnRanks(2, [](Rank& rank) {
    rank.Connect({.timeout = milliseconds(500), .deterministic = true});
    EXPECT_THAT(LossOf([&] {
                  RunUntilLost(rank,
                               {.elements = 100 + 10 * rank.store->rank()});
                }),
                AnyOf(HasSubstr("invalid usage"), HasSubstr("is missing")));
  });
}

TEST(NcclFaults, RanksThatDisagreeAboutTheOperation) {
  OnRanks(2, [](Rank& rank) {
    rank.Connect(milliseconds(500));
    const auto kind = rank.store->rank() == 0 ? CollectiveKind::kAllReduce
                                              : CollectiveKind::kBroadcast;
    EXPECT_THAT(
        LossOf([&] { RunUntilLost(rank, {.kind = kind, .elements = 100}); }),
        AnyOf(HasSubstr("invalid usage"), HasSubstr("is missing")));
  });
}

// Every operation reports asynchronous errors, rejected calls and hangs.
TEST(NcclFaults, EachOperationFailsInEachWay) {
  for (const auto kind :
       {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter,
        CollectiveKind::kAllGather, CollectiveKind::kBroadcast,
        CollectiveKind::kBarrier}) {
    for (const char* fault : {"error_at:2", "reject_at:2", "hang_at:2"}) {
      OnRanks(2, [kind, fault](Rank& rank) {
        InjectOn(rank, 1, fault);
        rank.Connect({.timeout = milliseconds(300), .deterministic = true});
        const std::string loss = LossOf(
            [&] { RunUntilLost(rank, {.kind = kind, .elements = 100}); });
        EXPECT_THAT(loss, AnyOf(HasSubstr("remote process exited"),
                                HasSubstr("invalid usage"),
                                HasSubstr("a peer is missing")))
            << runtime::CollectiveName(kind) << ", " << fault;
      });
    }
  }
}

// Timeout of a training step. Without a graph, the emulator takes long before
// the first collective.
constexpr milliseconds kStep{3'000};

// Fails each collective of a captured training step in turn.
TEST(NcclFaults, TheFirstOrTheLastCollectiveOfACapturedStepFails) {
  TrainedModel model = NarrowVgg(1);
  model.buckets = "cap:0.3";
  const int collectives = CompileAhead(model, 2);
  EXPECT_GE(collectives, 2);
  // The first step runs without a graph. One more collective agrees that all
  // ranks have one.
  const int before = collectives + 1;
  for (const int i : {before + 1, before + collectives}) {
    for (const char* fault : {"error_at", "hang_at"}) {
      OnRanks(2, [&](Rank& rank) {
        InjectOn(rank, 1, fmt::format("{}:{}", fault, i).c_str());
        rank.Connect(kStep);
        EXPECT_THAT(LossOf([&] {
                      model.steps = 1000;
                      Train(rank.backend, *rank.communicator, model);
                    }),
                    AnyOf(HasSubstr("remote process exited"),
                          HasSubstr("a peer is missing")));
        EXPECT_EQ(rank.allocated(), 0);
      });
    }
  }
}

// If a call is rejected during the capture, there is no graph.
TEST(NcclFaults, ARejectionWhileAStepIsCaptured) {
  const int collectives = CompileAhead(NarrowVgg(1), 2);
  OnRanks(2, [collectives](Rank& rank) {
    InjectOn(rank, 1, fmt::format("reject_at:{}", collectives + 1).c_str());
    rank.Connect(kStep);
    EXPECT_THAT(
        LossOf([&] { Train(rank.backend, *rank.communicator, NarrowVgg(1)); }),
        HasSubstr(rank.store->rank() == 1
                      ? "ncclAllReduce: invalid usage: the fake rejects"
                      : "a peer is missing"));
  });
}

// A rank can exit while both a collective and ncclCommAbort hang.
TEST(NcclFaults, AnAbortThatHangsInACollective) {
  const auto begun = std::chrono::steady_clock::now();
  OnRanks(2, [](Rank& rank) {
    InjectOn(rank, 0, "hang_at:2");
    InjectOn(rank, 0, "hang_abort");
    rank.Connect(milliseconds(300));
    EXPECT_THAT(LossOf([&] { RunUntilLost(rank); }),
                HasSubstr("a peer is missing"));
    rank.communicator.reset();
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(60));
}

// An abort frees what calls use. It must wait for the running call, and no call
// may follow.
TEST(NcclFaults, AnAbortDuringACall) {
  OnRanks(1, [](Rank& rank) {
    rank.inject("slow_calls");
    rank.Connect();
    std::thread other([&] {
      std::this_thread::sleep_for(milliseconds(30));
      rank.communicator->Abort("enough");
    });
    EXPECT_THAT(LossOf([&] { RunUntilLost(rank); }), HasSubstr("enough"));
    other.join();
    rank.communicator.reset();
    EXPECT_EQ(rank.dangling(), 0);
  });
}

// A rank can exit while ncclCommAbort hangs.
TEST(NcclFaults, AnAbortThatHangs) {
  const auto begun = std::chrono::steady_clock::now();
  OnRanks(2, [](Rank& rank) {
    rank.inject("hang_abort");
    rank.Connect();
    rank.communicator->Abort("enough");
    EXPECT_THAT(LossOf([&] { RunUntilLost(rank); }), HasSubstr("enough"));
    rank.communicator.reset();
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(60));
}

// `hangs` can end a process that waits forever, e.g. in a destructor that waits
// for the device.
TEST(NcclFaults, AnAbortThatHangsIsTold) {
  constexpr int kPeerLost = static_cast<int>(ErrorCode::kPeerLost);
  const auto begun = std::chrono::steady_clock::now();
  OnRanks(
      1,
      [](Rank& rank) {
        rank.inject("hang_abort");
        rank.Connect(
            {.timeout = milliseconds(300), .hangs = [](const std::string& why) {
               EXPECT_EQ(why, "rank 0: ncclCommAbort does not return");
               _exit(::testing::Test::HasFailure() ? 1 : kPeerLost);
             }});
        rank.communicator->Abort("enough");
        std::this_thread::sleep_for(std::chrono::seconds(120));
      },
      kPeerLost);
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(60));
}

}  // namespace
}  // namespace fusor::test
